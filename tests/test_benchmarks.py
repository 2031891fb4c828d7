"""The benchmarks' tools: streams that can be made again byte for byte, and a harness that shows what it compared."""

import io
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import xxhash

from benchmarks.generate import lines, main, run_of, stream, write_history, write_stream
from benchmarks.measure import Disagreement, JobError, run_job, side_by_side

REPOSITORY = Path(__file__).parent.parent
MEMBERS = [
    *("run_id", "event", "timestamp", "task_id", "category", "attempt", "phase", "status", "payload"),
    *("orchestration_id", "request_key", "request_name", "request_index"),
]


def test_same_seed_gives_same_bytes_in_every_process_and_another_seed_others(tmp_path):
    """A stream is named by its seed and options; neither the process nor its hash seed has a say."""
    digests = set()
    for hash_seed in ("0", "1", "77"):
        path = tmp_path / f"{hash_seed}.jsonl"
        argv = [sys.executable, "-m", "benchmarks.generate", str(path), "--events", "900", "--seed", "5", "--live"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        shown = subprocess.run(argv, cwd=REPOSITORY, env=environment, check=True, capture_output=True, text=True)
        told = json.loads(shown.stdout)
        content = path.read_bytes()
        assert (told["events"], told["bytes"]) == (content.count(b"\n"), len(content)) == (900, path.stat().st_size)
        assert told["xxh3"] == xxhash.xxh3_64_hexdigest(content)
        digests.add(told["xxh3"])
    assert len(digests) == 1
    assert write_stream(tmp_path / "other", 6, 900, live=True).xxh3 not in digests


def test_lines_are_spelled_as_agentcompass_spells_them():
    """Thirteen members in the specified order, default separators, UTF-8 unescaped; compact only where asked."""
    for event, line in zip(stream(3, 400), lines(stream(3, 400)), strict=True):
        assert list(event) == MEMBERS
        assert line == json.dumps(event, ensure_ascii=False).encode() + b"\n"
        assert isinstance(event["payload"], dict)
    assert any("数据清洗".encode() in line for line in lines(stream(3, 400)))
    compact = next(lines(stream(3, 400), compact=True))
    assert b'{"run_id":"' in compact
    assert b", " not in compact


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("attempts", "reuse"), [(1, 0.0), (3, 0.3)])
def test_a_finished_run_tells_a_whole_story_in_order_of_time(seed, attempts, reuse):
    """Each task and attempt starts before and finishes once, counts add up, and the last event is the terminal one."""
    events = list(stream(seed, 3000, attempts=attempts, concurrency=7, reuse=reuse))
    assert abs(len(events) - 3000) < 300
    assert [event["timestamp"] for event in events] == sorted(event["timestamp"] for event in events)
    names = Counter(event["event"] for event in events)
    loaded = events[2]["payload"]
    assert [event["event"] for event in events[:3]] == ["run_started", "tasks_loaded", "reuse_loaded"]
    assert loaded["reused_tasks"] + loaded["tasks_to_run"] == events[1]["payload"]["total_tasks"]
    assert names["task_started"] == names["task_finished"] == names["partial_saved"] == loaded["tasks_to_run"]
    assert names["attempt_started"] == names["attempt_finished"] == names["execution_plan_resolved"]
    assert names["attempt_started"] == attempts * loaded["tasks_to_run"]
    assert names["attempt_retry"] > 0
    assert (events[-1]["event"], events[-1]["status"]) == ("run_finished", "completed")
    started: set[tuple[str, int | None]] = set()
    running: set[str] = set()
    for event in events[3:-2]:
        place = event["task_id"], event["attempt"]
        if event["event"] in ("task_started", "attempt_started"):
            assert place not in started
            started.add(place)
            running.add(place[0])
        assert place in started
        assert place[0] in running
        assert len(running) <= 7
        if event["event"] == "task_finished":
            running.discard(place[0])


def test_attempts_of_many_tasks_interleave():
    """Neighbouring lines mostly belong to different tasks, as in a run with many slots."""
    tasks = [event["task_id"] for event in stream(1, 4000, concurrency=50) if event["attempt"]]
    changes = sum(first != second for first, second in pairwise(tasks))
    assert changes > 0.6 * len(tasks)


def test_a_live_stream_is_cut_at_the_event_asked_for_with_tasks_under_way():
    """`live` means exactly that many events, no terminal one, and full slots."""
    names = Counter(event["event"] for event in stream(2, 2500, live=True, concurrency=20))
    assert names.total() == 2500
    assert not names["run_finished"]
    assert names["task_started"] - names["task_finished"] == 20


def test_a_seal_sees_each_line_once_without_its_newline(tmp_path):
    """What a seal returns is what is written, so a chain over the lines can be put in here."""
    seen: list[bytes] = []

    def seal(line: bytes) -> bytes:
        seen.append(line)
        return line[:-1] + b',"log":{"seq":%d}}' % (len(seen) - 1)

    write_stream(tmp_path / "sealed", 4, 300, compact=True, seal=seal)
    assert seen == [line[:-1] for line in lines(stream(4, 300), compact=True)]
    written = (tmp_path / "sealed").read_bytes().splitlines()
    assert [json.loads(line)["log"]["seq"] for line in written] == list(range(len(seen)))


def test_a_history_has_its_runs_some_broken_off_and_a_fresh_seal_for_each(tmp_path):
    """Runs lie as AgentCompass lays them out, five to a launch, under their own ids; the whole can be made again."""
    seals: list[list[bytes]] = []

    def new_seal():
        seals.append([])
        return lambda line: seals[-1].append(line) or line

    first = write_history(tmp_path / "a", 12, 600, seed=9, killed=0.3, new_seal=new_seal)
    assert write_history(tmp_path / "b", 12, 600, seed=9, killed=0.3) == first
    streams = sorted((tmp_path / "a").glob("*/*/progress.jsonl"))
    last = [json.loads(path.read_bytes().splitlines()[-1]) for path in streams]
    assert len(streams) == len({event["run_id"] for event in last}) == 12
    assert all(event["run_id"] == path.parent.name for event, path in zip(last, streams, strict=True))
    assert 0 < sum(event["event"] != "run_finished" for event in last) < 12
    assert len({event["orchestration_id"] for event in last}) == 3
    assert sorted(map(len, seals)) == sorted(path.read_bytes().count(b"\n") for path in streams)
    assert sum(map(len, seals)) == first.events


def test_the_command_writes_a_history_and_says_what(tmp_path, capsys):
    """`--runs` switches to a history; the line printed counts all of it."""
    main([str(tmp_path), "--runs", "3", "--events", "300", "--killed", "0"])
    told = json.loads(capsys.readouterr().out)
    contents = [path.read_bytes() for path in tmp_path.glob("*/*/progress.jsonl")]
    assert len(contents) == 3
    assert told["events"] == sum(content.count(b"\n") for content in contents)
    assert told["bytes"] == sum(map(len, contents))


@pytest.mark.parametrize("wrong", [{"events": 0}, {"concurrency": 0}, {"attempts": 0}, {"reuse": 1.0}])
def test_a_run_that_can_not_be_is_refused(wrong):
    """Nothing is simulated from options that make no run."""
    with pytest.raises(ValueError, match="start at 1"):
        next(stream(**{"seed": 1, "events": 10, **wrong}))


def test_runs_of_one_launch_share_its_id():
    """The requests of a launch differ in index and run id only by what names them."""
    assert run_of(10, 0).orchestration_id == run_of(12, 2).orchestration_id != run_of(13, 0).orchestration_id


def job(seconds: float, digest: str | None, before: str = "") -> list[str]:
    call = f"report(seconds={seconds}, events=1000, bytes=2000000, digest={digest!r})"
    imports = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\nfrom benchmarks.measure import report"
    return [sys.executable, "-c", f"{imports}\n{before}\n{call}"]


def test_jobs_side_by_side_show_median_ratio_rate_memory_and_digest():
    """The table says what each job did, against the first."""
    out = io.StringIO()
    big = "waste = bytearray(200 << 20); waste[::4096] = bytes(len(waste[::4096]))"
    results = side_by_side({"plain": job(0.5, "feed"), "ours": job(0.75, "feed", big)}, rounds=2, out=out)
    head, plain, ours = out.getvalue().splitlines()
    assert head.split()[:3] == ["job", "digest", "median"]
    assert plain.split()[:8] == ["plain", "feed", "0.500", "0.500", "0.500", "1.00", "2,000", "4"]
    assert ours.split()[:6] == ["ours", "feed", "0.750", "0.750", "0.750", "1.50"]
    assert [len(runs) for runs in results.values()] == [2, 2]
    assert all(run.cpu_seconds > 0 for runs in results.values() for run in runs)


def test_peak_memory_is_the_jobs_own_and_not_that_of_whoever_measures():
    """A large parent does not lend its peak to a small job."""
    ballast = bytearray(300 << 20)
    ballast[::4096] = bytes(len(ballast[::4096]))
    small, large = run_job(job(1, None)), run_job(job(1, None, "x = bytearray(b'1') * (200 << 20)"))
    assert small.peak_mebibytes < 100
    assert large.peak_mebibytes >= 200


def test_a_job_that_fails_is_named_and_the_others_go_on():
    """A peer that is not installed costs its row only; its complaint is shown."""
    out = io.StringIO()
    jobs = {
        "missing": ["/nonexistent/peer"],
        "failing": job(1, None, "raise SystemExit('no such library')"),
        "silent": [sys.executable, "-c", "print('done')"],
        "fine": job(1, "a"),
    }
    results = side_by_side(jobs, rounds=2, out=out)
    assert {name: len(runs) for name, runs in results.items()} == {"missing": 0, "failing": 0, "silent": 0, "fine": 2}
    said = out.getvalue()
    assert "missing failed: /nonexistent/peer: could not be started" in said
    assert "no such library" in said
    assert "its last line is not the line of facts: 'done'" in said
    with pytest.raises(JobError, match="ended with 3"):
        run_job([sys.executable, "-c", "raise SystemExit(3)"])


def test_jobs_that_computed_different_answers_are_not_compared():
    """Times of jobs whose digests differ mean nothing, so it ends with an error; a job without digest has no say."""
    out = io.StringIO()
    with pytest.raises(Disagreement, match="answers differ: a, b"):
        side_by_side({"one": job(1, "a"), "bare": job(1, None), "two": job(1, "b")}, rounds=1, out=out)
    assert "two" in out.getvalue()
