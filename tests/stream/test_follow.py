"""Following a stream: each record once and whole, through half lines, replacement, cuts; tail and watch on top."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.watch import _rows
from eventstore.operations.watch import Origin, Watch
from eventstore.stream.follow import Follower
from eventstore.stream.lock import RunLock
from eventstore.stream.notify import Waker
from eventstore.stream.scan import scan
from projections import fold
from projections.timeline import board
from tests.tools.commands import Command
from tests.tools.failures import Copy, events_of
from tests.tools.recorded import RUNS
from tests.tools.streams import plain_line, sealed_stream

Lines = list[bytes]


def taken(follower: Follower) -> Lines:
    return [line for block in follower.read() for line in block.lines]


STEPS = [("r_kill_early", 1), ("p_load", 1), *((name, step) for name in RUNS for step in (97, 4096))]


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_a_stream_that_grows_in_any_steps_is_read_whole(name: str, step: int, run_dir: Copy, tmp_path: Path) -> None:
    """Whatever the pieces in which its bytes come, the records are those of one scan, each once."""
    content = (run_dir(name) / "progress.jsonl").read_bytes()
    path = tmp_path / "growing.jsonl"
    path.touch()
    follower, found = Follower(path), Lines()
    for at in range(0, len(content), step):
        with open(path, "ab") as stream:
            stream.write(content[at : at + step])
        found += taken(follower)
    assert b"".join(found) == content and follower.restarts == 0
    assert follower.records == sum(1 for _ in scan(path))
    assert taken(follower) == []


def test_a_half_line_waits(tmp_path: Path) -> None:
    """It is no damage, it is not passed over, and it comes when it is whole."""
    path = tmp_path / "progress.jsonl"
    line = plain_line(1)
    path.write_bytes(plain_line(0) + b"\n" + line[:50])
    follower = Follower(path)
    assert len(taken(follower)) == 1 and taken(follower) == []
    with open(path, "ab") as stream:
        stream.write(line[50:])
    assert taken(follower) == []
    with open(path, "ab") as stream:
        stream.write(b"\n")
    assert taken(follower) == [line + b"\n"] and not follower.verdicts


def write(path: Path, count: int, run_id: str = "r") -> None:
    path.write_bytes(b"".join(plain_line(n, run_id) + b"\n" for n in range(count)))


def replace(path: Path, count: int, run_id: str = "r") -> None:
    fresh = path.with_suffix(".new")
    write(fresh, count, run_id)
    os.replace(fresh, path)


@pytest.mark.parametrize("change", [write, replace])
@pytest.mark.parametrize("count", [3, 10, 30])
def test_a_stream_that_is_cut_or_replaced_is_read_from_its_front(
    change: Callable[[Path, int, str], None], count: int, tmp_path: Path
) -> None:
    """Shorter, as long, or longer; with the file's identity or without: nothing old, nothing missing."""
    path = tmp_path / "progress.jsonl"
    write(path, 10)
    follower = Follower(path)
    assert len(taken(follower)) == 10
    change(path, count, "s")
    assert len(taken(follower)) == count and follower.restarts == 1 and follower.run_id == "s"


def test_a_missing_stream_is_waited_for(tmp_path: Path) -> None:
    """No file: a problem in words and no records; when it comes it is read, when it goes that is told."""
    follower = Follower(tmp_path / "progress.jsonl")
    assert taken(follower) == [] and "no such file" in (follower.problem or "")
    write(tmp_path / "progress.jsonl", 4)
    assert len(taken(follower)) == 4 and follower.problem is None
    (tmp_path / "progress.jsonl").unlink()
    assert taken(follower) == [] and follower.problem is not None


def test_damage_is_told_with_its_line_and_the_chain_goes_on(tmp_path: Path) -> None:
    """A sealed stream in pieces: no finding at the seams, one where it is damaged."""
    path = tmp_path / "progress.jsonl"
    lines = sealed_stream(20)
    path.write_bytes(b"".join(lines[:10]))
    follower = Follower(path)
    assert len(taken(follower)) == 10 and not follower.verdicts
    with open(path, "ab") as stream:
        stream.write(b"rubbish\n" + b"".join(lines[10:]))
    assert len(taken(follower)) == 10
    assert follower.verdicts == {"corrupt_line": 1} and follower.new_findings[0].line == 11


def test_waiting_ends_when_something_changes_or_time_is_up(tmp_path: Path) -> None:
    """File events wake; without them the clock does."""
    waker = Waker()
    waker.watch(tmp_path)
    threading.Timer(0.1, lambda: (tmp_path / "x").write_text("x")).start()
    woken = waker.wait(30.0)
    assert woken or not waker.has_events
    waker.close()
    assert waker.wait(0.01) is False


# -- tail


def test_tail_prints_each_event_as_one_json_line(run_dir: Copy, command: Command) -> None:
    """All members in their order, in pure ASCII."""
    for name in ("r_ok", "r_odd", "r_kill_mid"):
        run = run_dir(name)
        assert command("tail", run) == 0
        assert [json.loads(line) for line in command.out.splitlines()] == events_of(run) and command.out.isascii()


def test_tail_filters(run_dir: Copy, command: Command) -> None:
    """By task, event, phase and time; several values of one option mean any of them."""
    run = run_dir("r_retry2")
    events = events_of(run)
    middle = events[200]["timestamp"]
    cases = {
        ("--task", "arith-003"): lambda e: "arith-003" in (e["task_id"] or ""),
        ("--event", "attempt_retry", "--event", "run_finished"): lambda e: (
            e["event"] in ("attempt_retry", "run_finished")
        ),
        ("--phase", "evaluate"): lambda e: e["phase"] == "evaluate",
        ("--since", str(middle)): lambda e: e["timestamp"] >= middle,
        ("--task", "004", "--event", "attempt_retry"): lambda e: (
            e["event"] == "attempt_retry" and "004" in e["task_id"]
        ),
    }
    for options, wanted in cases.items():
        assert command("tail", run, *options) == 0
        assert [json.loads(line) for line in command.out.splitlines()] == [e for e in events if wanted(e)]
    assert command("tail", run, "-n", "3") == 0 and len(command.out.splitlines()) == 3
    assert command("tail", run, "--since", "yesterday") == 2


def test_tail_of_a_run_without_events_says_so(run_dir: Copy, command: Command) -> None:
    """No line, a word on stderr, and no failure."""
    run = run_dir("p_load")
    (run / "progress.jsonl").unlink()
    assert command("tail", run) == 0 and command.out == "" and "no event" in command.err


def test_tail_refuses_an_event_name_that_nothing_has(run_dir: Copy, command: Command) -> None:
    """A misspelt name is a usage error, and not an empty answer; a name that the stream alone has is fine."""
    run = run_dir("r_ok")
    assert command("tail", run, "--event", "task_finishd") == 2
    assert command.out == "" and "no event is called 'task_finishd'" in command.err
    assert command("tail", run, "--event", "attempt_retry") == 0 and command.out == ""
    with open(run / "progress.jsonl", "ab") as stream:
        stream.write(plain_line(0, event="gpu_sampled", run_id=events_of(run)[0]["run_id"]) + b"\n")
    assert command("tail", run, "--event", "gpu_sampled") == 0 and len(command.out.splitlines()) == 1


def test_tail_follows_until_the_run_ends(run_dir: Copy, tmp_path: Path) -> None:
    """What comes later comes out later, through a replacement; then it ends by itself."""
    content = (run_dir("r_ok") / "progress.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    run = tmp_path / "live"
    run.mkdir()
    path = run / "progress.jsonl"
    path.write_bytes(b"".join(lines[:30]) + lines[30][:20])
    tail = subprocess.Popen(
        [sys.executable, "-c", "from cli.main import main; main()", "tail", str(run), "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert tail.stdout is not None
    first = [tail.stdout.readline() for _ in range(30)]
    with open(path, "ab") as stream:
        stream.write(lines[30][20:] + b"".join(lines[31:]))
    out, err = tail.communicate(timeout=60)
    got = [json.loads(line) for line in [*first, *out.splitlines()]]
    assert got == [json.loads(line) for line in lines] and tail.returncode == 0 and err == b""


# -- watch


@pytest.mark.parametrize("name", RUNS)
def test_watch_once_gives_the_counts_of_progress_json(name: str, run_dir: Copy, command: Command) -> None:
    """As a JSON line; in text the same run by its name."""
    run = run_dir(name)
    assert command("watch", run, "--once", "--json") == 0
    page = json.loads(command.out)
    stored = json.loads((run / "progress.json").read_text())
    del stored["active_tasks"]
    assert {key: page[key] for key in stored} == stored
    assert command("watch", run, "--once") == 0 and page["run_id"] in command.out


def test_watch_of_many_runs_is_one_line_each(runs_root: Path, command: Command) -> None:
    """All runs below a folder, in the order of their paths."""
    assert command("watch", runs_root, "--once", "--json") == 0
    pages = [json.loads(line) for line in command.out.splitlines()]
    assert [page["run_key"] for page in pages] == sorted(RUNS.values())


def test_runs_of_one_orchestration_stand_together(run_dir: Copy, tmp_path: Path) -> None:
    """Below a row with their sums, by request; a run that shares its orchestration with none stands alone."""
    for name, request in (("r_ok", "first"), ("p_load", "other"), ("r_retry", "second")):
        events = events_of(run_dir(name))
        shared = {} if request == "other" else {"orchestration_id": "orch-0123456789", "request_name": request}
        run = tmp_path / "many" / name
        run.mkdir(parents=True)
        lines = [json.dumps(event | shared) for event in events]
        (run / "progress.jsonl").write_text("\n".join(lines) + "\n")
    watch = Watch(tmp_path / "many", lambda path, words: None)
    watch.look()
    pages = list(watch.pages())
    watch.close()
    rows = list(_rows(pages))
    assert [row[0] for row in rows] == ["p_load", "orchestration …-0123456789", "  first: r_ok", "  second: r_retry"]
    both = [page for page in pages if page.run_key != "p_load"]
    assert rows[1][1] == "2 runs"
    assert rows[1][2] == f"{sum(p.finished_tasks for p in both)}/{sum(p.total_tasks for p in both)}"
    assert both[0].origin == Origin(orchestration_id="orch-0123456789", request_name="first", request_index=0)


def test_watch_ends_when_its_run_is_over(run_dir: Copy, command: Command) -> None:
    """Without a terminal it prints a line, and does not wait for what can't come."""
    assert command("watch", run_dir("r_ok")) == 0
    assert command.out.startswith("r_ok  completed  finished  4/4 tasks")


def test_a_board_in_pieces_equals_the_board_of_the_whole(run_dir: Copy, tmp_path: Path) -> None:
    """Fed while the stream grows, through a restart, with new runs found on the way."""
    content = (run_dir("r_retry2") / "progress.jsonl").read_bytes()
    run = tmp_path / "boards/live"
    run.mkdir(parents=True)
    now = [1000.0]
    watch = Watch(tmp_path / "boards", lambda path, words: None, clock=lambda: now[0])
    watch.look()
    assert watch.runs == {}
    (run / "progress.jsonl").write_bytes(b"")
    for at in range(0, len(content), 9999):
        with open(run / "progress.jsonl", "ab") as stream:
            stream.write(content[at : at + 9999])
        now[0] += 10
        watch.look()
    whole = fold(board, scan(run / "progress.jsonl"))
    assert watch.runs["live"].board == whole
    (run / "progress.jsonl").write_bytes(content[: content.index(b"\n", 20000) + 1])
    now[0] += 10
    watch.look()
    assert watch.runs["live"].board == fold(board, scan(run / "progress.jsonl"))
    watch.close()


def test_a_live_run_that_stands_still_is_stalled_and_an_ended_one_never(tmp_path: Path, command: Command) -> None:
    """The lock is held, and the last event is an hour old: far beyond the run's own history."""
    now = time.time()
    times = [now - 3700 + n for n in range(20)]
    lines = [plain_line(n, timestamp=moment, task_id="t", attempt=1) for n, moment in enumerate(times)]
    (tmp_path / "progress.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with RunLock(tmp_path):
        assert command("diagnose", tmp_path, "--json") == 1
        report = command.document
        assert report["outcome"] == "stalled" and report["life"]["state"] == "stalled"
        assert report["causes"][0]["code"] == "stalled" and "hang in plan" in report["causes"][0]["message"]
        assert "no event for" in report["life"]["evidence"][0]
        assert command("watch", tmp_path, "--once", "--json") == 0
        assert json.loads(command.out)["life"]["state"] == "stalled"
        assert command("show", tmp_path, "--json") == 0 and command.document["life"]["state"] == "stalled"
        assert command("runs", tmp_path, "--json") == 0 and command.document["runs"][0]["life"]["state"] == "stalled"
        end = plain_line(20, event="run_finished", status="completed", timestamp=times[-1] + 1, task_id=None)
        with open(tmp_path / "progress.jsonl", "ab") as stream:
            stream.write(end + b"\n")
        assert command("diagnose", tmp_path, "--json") == 0 and command.document["life"]["state"] == "finished"


def test_tasks_that_hang_stall_a_run_that_was_quick_before(tmp_path: Path, command: Command) -> None:
    """Two minutes in a phase that took others a second: every command says stalled, and names who hangs where."""
    now = time.time()
    lines = [
        plain_line(0, event="tasks_loaded", task_id=None, phase=None, timestamp=now - 600, payload={"total_tasks": 30})
    ]
    for n in range(8):
        at = now - 500 + 45 * n
        more = {"task_id": f"t{n}", "attempt": 1}
        lines.append(plain_line(n, event="task_started", phase=None, timestamp=at, payload={}, task_id=f"t{n}"))
        lines.append(plain_line(n, phase="open_environment", timestamp=at + 0.1, **more))
        if n < 7:
            lines.append(plain_line(n, phase="run_harness", timestamp=at + 1.1, **more))
            lines.append(
                plain_line(
                    n,
                    event="task_finished",
                    phase=None,
                    timestamp=at + 2,
                    task_id=f"t{n}",
                    status="completed",
                    payload={"severity": ""},
                )
            )
    (tmp_path / "progress.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with RunLock(tmp_path):
        assert command("diagnose", tmp_path, "--json") == 1
        first = command.document["causes"][0]
        assert first["code"] == "sandbox_never_opened" and first["task_ids"] == ["t7"]
        assert command("watch", tmp_path, "--once", "--json") == 0
        page = json.loads(command.out)
        assert page["life"]["state"] == "stalled" and page["idle"][0]["task_id"] == "t7"
        assert 0 < page["eta"]["low_seconds"] <= page["eta"]["remaining_seconds"] <= page["eta"]["high_seconds"]
        assert command("show", tmp_path, "--json") == 0
        assert command.document["life"]["state"] == "stalled" and command.document["eta"] is not None
        assert command.document["in_flight"][0]["siblings_seconds"] == pytest.approx(1.0, abs=0.01)


def test_a_first_task_that_hangs_is_seen_by_the_history_of_other_runs(tmp_path: Path, command: Command) -> None:
    """Five minutes in a phase that no task of this run has left, and that takes a second in others: stuck."""
    ids = {"benchmark": "b", "environment": "e", "harness": "h", "model": "m"}
    start = {"event": "run_started", "task_id": None, "phase": None, "payload": ids}
    old = [plain_line(0, "old", **start)]
    for n in range(6):
        old.append(plain_line(n, "old", attempt=1, phase="open_environment"))
        old.append(plain_line(n + 1, "old", attempt=1, phase="run_harness", task_id=f"t{n}"))
    now = time.time()
    new = [plain_line(0, **start | {"timestamp": now - 290})]
    new.append(plain_line(1, attempt=1, phase="open_environment", timestamp=now - 280))
    for name, lines in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "progress.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with RunLock(tmp_path / "new"):
        assert command("diagnose", tmp_path / "new", "--json") == 0
        assert command.document["outcome"] == "running"
        assert command("diagnose", tmp_path / "new", "--history", tmp_path, "--json") == 1
        assert command.document["outcome"] == "stalled"
        assert command.document["causes"][0]["code"] == "sandbox_never_opened"


def test_the_expected_end_is_a_range_around_the_recent_pace() -> None:
    """Ten finishes a second apart and thirty tasks left: about half a minute; nothing is said with too few."""
    state = board.State(finished_at=[float(n) for n in range(10)])
    found = board.eta(state, 30, 9.0)
    assert found is not None and found.low_seconds <= found.remaining_seconds == 30.0 <= found.high_seconds
    assert board.eta(board.State(finished_at=[1.0, 2.0]), 30, 9.0) is None
    assert board.eta(state, 0, 9.0) is None
    uneven = board.State(finished_at=[0, 1, 2, 3, 4, 14, 24, 34, 44])
    wide = board.eta(uneven, 10, 44.0)
    assert wide is not None and wide.low_seconds == 10.0 and wide.high_seconds == 100.0


def test_a_board_does_not_grow_with_the_stream() -> None:
    """A hundred thousand phases of four tasks leave rings of a fixed length and nothing else."""
    from eventstore.format.records import Block, Head

    state = board.State()
    for start in range(0, 20_000, 1000):
        heads, lines = [], []
        for n in range(start, start + 1000):
            lines.append(plain_line(n, task_id=f"t{n % 4}", attempt=1, phase=f"p{n % 3}"))
            heads.append(Head("r", "phase_changed", 1000.5 + n, f"t{n % 4}"))
        board.apply_block(state, Block(heads, lines, start, 0, 1))
    assert len(state.rows.tasks) == 4 and not state.rows.phases and len(state.stays) == 3
    assert all(len(stays.recent) <= 2 * board.RING for stays in state.stays.values())
