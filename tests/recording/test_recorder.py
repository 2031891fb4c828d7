"""RunRecorder: directories as specified, snapshots that are the fold, ends that are told, a way back after a crash."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from eventstore.errors import InputError, LockedError, LogPoisonedError, OutputError, RefusedError, UsageError
from eventstore.format import codec
from eventstore.format.events import (
    AttemptFinished,
    AttemptRetry,
    AttemptRetryPayload,
    AttemptStarted,
    ExecutionPlanResolved,
    PartialSaved,
    PhaseChanged,
    RunFinished,
    RunFinishedPayload,
    RunStarted,
    SummaryStarted,
    TaskFinished,
    TaskFinishedPayload,
    TasksLoaded,
    TasksLoadedPayload,
    TaskStarted,
    TaskStartedPayload,
    UnknownEvent,
)
from eventstore.format.heads import session_writer
from eventstore.operations.close import close_run
from eventstore.operations.replay import replay_run
from eventstore.recording.recorder import RunRecorder
from eventstore.stream.encode import Origin
from eventstore.stream.lock import is_locked
from eventstore.stream.lock_file import read_witness
from eventstore.stream.log import EventLog
from eventstore.stream.scan import scan
from projections.snapshots.run_info import pretty_pieces
from tests.tools.faults import FaultyFiles
from tests.tools.recorded import ROOT, RUNS

STREAM = "progress.jsonl"
REQUEST = {
    "model": {"id": "m", "api_key": "sk-0123456789abcdef0123"},
    "benchmark": {"id": "b", "params": {"n": 2}},
    "harness": {"id": "h"},
    "environment": {"id": "e"},
}
PLAN = {
    "environment": {"id": "e", "network_policy": {"network_mode": "public", "allowed_hosts": []}},
    "evaluation_environment": None,
    "applied_recipes": [],
}


def create(run_dir: Path, **options) -> RunRecorder:
    return RunRecorder.create(run_dir, **{"request": REQUEST, **options})


def record_task(run: RunRecorder, task_id: str = "t", attempts: int = 1) -> None:
    """One task's whole story."""
    run.append(TaskStarted(task_id=task_id, category="c", payload=TaskStartedPayload(index=0, total=1)))
    for attempt in range(1, attempts + 1):
        run.append(AttemptStarted(task_id=task_id, category="c", attempt=attempt))
        run.append(ExecutionPlanResolved(task_id=task_id, category="c", attempt=attempt, phase="plan", payload=PLAN))
        run.append(PhaseChanged(task_id=task_id, category="c", attempt=attempt, phase="run_harness"))
        run.append(AttemptFinished(task_id=task_id, category="c", attempt=attempt, status="completed"))
    run.append(PartialSaved(task_id=task_id, category="c"))
    payload = TaskFinishedPayload(index=0, total=1, severity="")
    run.append(TaskFinished(task_id=task_id, category="c", status="completed", payload=payload))


def load(path: Path) -> dict:
    return json.loads(path.read_bytes())


def events(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "progress.jsonl").read_bytes().splitlines()]


def check_rebuilds(run_dir: Path) -> None:
    """Both snapshots can be deleted and come back byte for byte from the stream alone."""
    names = ("progress.json", "run_info.json")
    stored = {name: (run_dir / name).read_bytes() for name in names}
    for name in names:
        (run_dir / name).unlink()
    replayed = replay_run(run_dir)
    assert dict(replayed.verdicts) == {}
    assert sorted(replayed.written) == sorted(names)
    assert {name: (run_dir / name).read_bytes() for name in names} == stored


# -- a whole run


def test_a_whole_run_leaves_the_specified_records_and_rebuilds_from_its_stream(tmp_path):
    """Five record files and the lock; the snapshots are exactly what replay makes of the stream."""
    run_dir = tmp_path / "results" / "m" / "r1"
    with create(run_dir) as run:
        run.append(TasksLoaded(payload=TasksLoadedPayload(total_tasks=1)))
        record_task(run, attempts=2)
        run.append(SummaryStarted())
        run.record_metric_artifacts({"k": 1, "strategy": "avg", "aggregation": "micro_weighted"})
        run.finish("completed")
    assert {path.name for path in run_dir.iterdir()} == {
        "run.log",
        "run_info.json",
        "params.json",
        "progress.json",
        "progress.jsonl",
        "progress.lock",
    }
    info, progress = load(run_dir / "run_info.json"), load(run_dir / "progress.json")
    assert (info["run_id"], info["status"], info["schema_version"]) == ("r1", "completed", "agentcompass.run_info.v3")
    assert info["request"]["output"]["run_id"] == "r1"
    assert info["resolved_execution_plans"] == {"t": {"attempts": {"1": PLAN, "2": PLAN}}}
    assert info["metric_artifacts"]["source"] == "evaluation"
    assert "benchmark_params_override" not in info["metric_artifacts"]
    assert (progress["status"], progress["finished_tasks"], progress["attempts_finished"]) == ("completed", 1, 2)
    assert load(run_dir / "params.json")["output"] == {"run_id": "r1"}
    started = events(run_dir)[0]
    assert started["event"] == "run_started"
    assert started["payload"]["request"] == info["request"]
    assert started["payload"]["started_at"] == info["started_at"]
    check_rebuilds(run_dir)


def test_each_session_records_whether_it_keeps_run_info(tmp_path):
    """`create` and `open` do; a recorder that is attached, a re-analysis and `close` leave the file to others."""
    run_dir = tmp_path / "r"
    create(run_dir).close()
    with RunRecorder.open(run_dir) as run:
        record_task(run)
        run.close()
    with RunRecorder.attach(run_dir) as run:
        record_task(run, "u")
        run.close()
    close_run(run_dir, "failed")
    sessions = [
        session_writer(block.lines[index]) for block in scan(run_dir / STREAM).blocks() for index in block.sessions
    ]
    assert [writer.get("owns_run_info") for writer in sessions] == [True, True, None, None]
    assert {writer["pid"] for writer in sessions} == {os.getpid()}
    RunRecorder.analyze(run_dir).close()
    assert [event["log"]["writer"].get("owns_run_info") for event in events(run_dir)] == [None]


def test_only_a_line_that_opens_a_session_names_a_writer(tmp_path):
    """A payload that imitates the proof of a session's first line is no border."""
    imitation = {"a": 1, "log": {"writer": {"id": "somebody"}}}
    with EventLog.open(tmp_path, run_id="r") as log:
        for _ in range(3):
            log.append(PhaseChanged(payload=imitation))
    blocks = list(scan(tmp_path / STREAM).blocks())
    assert [index for block in blocks for index in block.sessions] == [0]
    assert [bool(session_writer(line)) for block in blocks for line in block.lines] == [True, False, False]


def test_files_come_in_the_order_of_the_specification(tmp_path):
    """`run.log` with the directory, `run_info.json` before anything is recorded, then the stream and its snapshot."""
    seen: list[set[str]] = []

    class Watching(FaultyFiles):
        def replace(self, source, target) -> None:
            seen.append({path.name for path in run_dir.iterdir() if not path.name.startswith(".tmp.")})
            super().replace(source, target)

    run_dir = tmp_path / "r"
    files = Watching()
    with create(run_dir, files=files) as run:
        assert [name for name, _ in files.replaced][:2] == ["run_info.json", "progress.json"]
        assert seen[0] == {"progress.lock", "run.log"}
        assert seen[1] == {"progress.lock", "run.log", "run_info.json", "progress.jsonl"}
        assert "params.json" not in os.listdir(run_dir)
        assert "status" not in load(run_dir / "run_info.json")
        assert load(run_dir / "progress.json")["status"] == "running"
        run.finish("completed")


def test_a_request_that_fails_its_checks_makes_no_directory(tmp_path):
    """Nor one that has no form in JSON, nor an unknown log level."""
    for options in (
        {"request": {"model": {"id": "m"}}},
        {"request": {**REQUEST, "benchmark": {"id": "b", "params": {"x": object()}}}},
    ):
        with pytest.raises(UsageError):
            RunRecorder.create(tmp_path / "results" / "r", **options)
        assert not (tmp_path / "results").exists()


def test_a_directory_is_taken_once(tmp_path):
    """An empty directory may be there already; a run may not, and two creators never share one."""
    (tmp_path / "r").mkdir()
    run = create(tmp_path / "r")
    with pytest.raises(LockedError, match=f"process {os.getpid()}"):
        create(tmp_path / "r")
    run.close()
    with pytest.raises(RefusedError, match="holds a run already"):
        create(tmp_path / "r")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file"):
        create(tmp_path / "file")
    with pytest.raises(InputError):
        RunRecorder.open(tmp_path / "nothing")
    assert is_locked(tmp_path / "r") is False


def test_reused_from_and_orchestration_are_recorded(tmp_path):
    """Where results came from, and where the request stands in its launch."""
    source = {"run_id": "r0", "path": "/data/r0"}
    with create(tmp_path / "r", reused_from=source, origin=Origin("o", "o/1", "n", 1), run_id="r9") as run:
        run.append(TaskStarted(task_id="t"))
        run.finish()
    assert load(tmp_path / "r" / "run_info.json")["reused_from"] == source
    assert [event["request_key"] for event in events(tmp_path / "r")] == ["o/1"] * 3
    assert {event["run_id"] for event in events(tmp_path / "r")} == {"r9"}
    check_rebuilds(tmp_path / "r")


# -- ends


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (RuntimeError("boom"), "failed", "RuntimeError: boom"),
        (KeyboardInterrupt(), "cancelled", "KeyboardInterrupt"),
        (asyncio.CancelledError(), "cancelled", "CancelledError"),
        (SystemExit(3), "cancelled", "SystemExit: 3"),
        (TimeoutError("late"), "failed", "TimeoutError: late"),
    ],
)
def test_an_exception_ends_the_run_and_goes_on_its_way(tmp_path, error, status, text):
    """Failed, or cancelled where somebody stopped it; the exception is the caller's own."""
    with pytest.raises(type(error)), create(tmp_path / "r") as run:
        run.append(TaskStarted(task_id="t"))
        raise error
    info = load(tmp_path / "r" / "run_info.json")
    assert (info["status"], info["error"]) == (status, text)
    assert load(tmp_path / "r" / "progress.json")["status"] == status
    assert is_locked(tmp_path / "r") is False
    check_rebuilds(tmp_path / "r")


def test_leaving_without_finish_writes_no_end_and_says_so(tmp_path, caplog):
    """Nobody said how the run ended, so nothing is claimed; it can be opened again."""
    with create(tmp_path / "r") as run:
        run.append(TaskStarted(task_id="t"))
    assert "without finish()" in caplog.text
    assert "status" not in load(tmp_path / "r" / "run_info.json")
    with RunRecorder.open(tmp_path / "r") as run:
        assert not run.finished
        run.finish("timed_out", "whole-request timeout")
    assert load(tmp_path / "r" / "run_info.json")["status"] == "timed_out"
    check_rebuilds(tmp_path / "r")


def test_after_the_end_only_administrative_events_are_accepted(tmp_path):
    """A finished run takes provenance, and nothing that would change its story."""
    with create(tmp_path / "r") as run:
        run.append(RunFinished(status="failed", payload=RunFinishedPayload(error="x")))
        assert run.finished
        for event in (TaskStarted(task_id="t"), RunFinished(status="completed"), UnknownEvent(event="x")):
            with pytest.raises(UsageError, match="has finished"):
                run.append(event)
        updated = run.progress["updated_at"]
    with RunRecorder.open(tmp_path / "r") as run:
        run.record_metric_artifacts({"k": 1}, source="summary")
        run.record_loss(3, 1.0, 2.0, "disk full")
        assert run.progress["updated_at"] == updated
    info = load(tmp_path / "r" / "run_info.json")
    assert info["metric_artifacts"]["benchmark_params_override"] == {}
    assert info["status"] == "failed"
    check_rebuilds(tmp_path / "r")


@pytest.mark.parametrize("status", ["done", "", None, "running"])
def test_a_run_ends_with_one_of_four_states(tmp_path, status):
    """Anything else is the caller's mistake, and leaves the run as it was."""
    with create(tmp_path / "r") as run:
        with pytest.raises(UsageError, match="a run ends as"):
            run.finish(status)
        run.finish("cancelled")


def test_a_finished_run_can_be_started_again(tmp_path):
    """A `run_started` in the same stream opens it; the end that counts is the last."""
    moments = iter(range(1000, 100_000, 10))
    with create(tmp_path / "r", clock=lambda: next(moments)) as run:
        run.finish("failed", "first")
    first = load(tmp_path / "r" / "run_info.json")
    with RunRecorder.open(tmp_path / "r", clock=lambda: next(moments)) as run:
        run.append(RunStarted())
        assert "status" not in load(tmp_path / "r" / "run_info.json")
        assert load(tmp_path / "r" / "progress.json")["status"] == "running"
        run.finish("failed", "second")
    info = load(tmp_path / "r" / "run_info.json")
    assert info["error"] == "second"
    assert info["finished_at"] > first["finished_at"]
    assert (info["request"], info["started_at"]) == (first["request"], first["started_at"])
    check_rebuilds(tmp_path / "r")


def test_only_administrative_events_leave_a_stored_snapshot_as_it_is(tmp_path):
    """They count nothing and move no clock: what progress.json says of the run before them stays."""
    create(tmp_path / "r").close()
    stored = load(tmp_path / "r" / "progress.json")
    with RunRecorder.open(tmp_path / "r") as run:
        run.record_loss(3, 1.0, 2.0, "a full disk")
        run.record_metric_artifacts({"k": 1, "strategy": "avg", "aggregation": "micro_weighted"})
        run.close()
    assert load(tmp_path / "r" / "progress.json") == stored
    assert replay_run(tmp_path / "r", write=False, force=True).changed == []


def test_an_end_without_a_known_beginning_is_written_in_utc(tmp_path):
    """`started_at` is missing beside a `finished_at` of another status: the stream's end replaces it."""
    with create(tmp_path / "r", clock=lambda: 1_700_000_000.0) as run:
        run.finish("failed", "x")
    info = load(tmp_path / "r" / "run_info.json")
    del info["started_at"]
    wrong = info | {"status": "completed", "finished_at": "1999-01-01T00:00:00+05:00", "started_at": None}
    (tmp_path / "r" / "run_info.json").write_text(json.dumps(wrong))
    record = replay_run(tmp_path / "r", write=False).snapshots.run_info
    assert (record["status"], record["finished_at"]) == ("failed", "2023-11-14T22:13:20+00:00")


# -- coming back


def test_a_crashed_run_goes_on_with_the_state_it_had(tmp_path):
    """A torn tail is set aside, and the tasks under way are still under way."""
    run = create(tmp_path / "r")
    run.append(TasksLoaded(payload=TasksLoadedPayload(total_tasks=3)))
    record_task(run, "t1")
    run.append(TaskStarted(task_id="t2"))
    before = run.progress
    run.close()
    with (tmp_path / "r" / "progress.jsonl").open("ab") as stream:
        stream.write(b'{"run_id":"r","eve')
    (tmp_path / "r" / "progress.json").write_bytes(b"\0" * 100)
    with RunRecorder.open(tmp_path / "r") as run:
        assert run.progress == before
        assert load(tmp_path / "r" / "progress.json") == before
        run.append(TaskFinished(task_id="t2", status="failed", payload=TaskFinishedPayload(severity="fatal")))
        run.finish("completed")
    assert load(tmp_path / "r" / "progress.json")["failed_tasks"] == 1
    assert (tmp_path / "r" / "progress.jsonl.torn-1").exists()
    check_rebuilds(tmp_path / "r")


def test_a_run_that_died_before_its_first_event_begins_with_what_run_info_says(tmp_path):
    """Its stream can rebuild the record all the same."""
    create(tmp_path / "r").close()
    info = load(tmp_path / "r" / "run_info.json")
    for path in (tmp_path / "r").iterdir():
        if path.name.startswith("progress"):
            path.unlink()
    with RunRecorder.open(tmp_path / "r") as run:
        run.finish("failed", "died")
    assert load(tmp_path / "r" / "run_info.json")["request"] == info["request"]
    assert events(tmp_path / "r")[0]["payload"]["started_at"] == info["started_at"]
    check_rebuilds(tmp_path / "r")


def test_a_run_that_agentcompass_wrote_can_be_ended_and_loses_nothing(run_dir):
    """Its plans, request and unknown members stay; progress goes on from its own counts."""
    path = run_dir("r_kill_mid")
    info, progress = load(path / "run_info.json"), load(path / "progress.json")
    with RunRecorder.open(path) as run:
        assert load(path / "run_info.json") == info
        run.finish("cancelled", "killed")
    ended = load(path / "run_info.json")
    assert (ended.pop("status"), ended.pop("error")) == ("cancelled", "killed")
    assert ended.pop("finished_at")
    assert ended == info
    assert load(path / "progress.json")["finished_tasks"] == progress["finished_tasks"]
    assert dict(replay_run(path, write=False).verdicts) == {}


def test_a_reanalysis_sets_the_evaluation_aside_and_touches_neither_record(tmp_path):
    """The evaluation's stream keeps its bytes under another name; replay changes nothing of the run's record."""
    with create(tmp_path / "r") as run:
        record_task(run)
        run.finish("completed")
    names = ("run_info.json", "params.json", "run.log")
    kept = {name: (tmp_path / "r" / name).read_bytes() for name in names}
    stream = (tmp_path / "r" / "progress.jsonl").read_bytes()
    for number in (1, 2):
        run = RunRecorder.analyze(tmp_path / "r")
        assert replay_run(tmp_path / "r", write=False, force=True).changed == []
        run.append(TasksLoaded(payload=TasksLoadedPayload(total_tasks=1)))
        run.append(PhaseChanged(task_id="t", phase="analyze"))
        if number == 2:
            run.finish("completed")
        run.close()
    assert {name: (tmp_path / "r" / name).read_bytes() for name in names} == kept
    assert (tmp_path / "r" / "progress.evaluation-1.jsonl").read_bytes() == stream
    assert (tmp_path / "r" / "progress.analysis-1.jsonl").exists()
    assert {event["run_id"] for event in events(tmp_path / "r")} == {"r"}
    assert load(tmp_path / "r" / "progress.json")["status"] == "completed"
    assert dict(scan(tmp_path / "r").verdicts) == {}


# -- snapshots


def test_snapshots_are_few_follow_within_a_moment_and_are_never_synced(tmp_path):
    """At most ten writes a second however busy the run, one trailing write, no fsync for any."""
    files = FaultyFiles()
    run = create(tmp_path / "r", files=files, durability="os")
    began, fsyncs = time.monotonic(), files.fsyncs
    sent = 0
    while time.monotonic() - began < 0.55:
        run.append(AttemptStarted(task_id="t", attempt=1))
        sent += 1
    deadline = time.monotonic() + 20
    while load(tmp_path / "r" / "progress.json")["attempts_started"] < sent and time.monotonic() < deadline:
        time.sleep(0.02)
    seconds = time.monotonic() - began
    written = [name for name, _ in files.replaced].count("progress.json") - 1
    assert load(tmp_path / "r" / "progress.json")["attempts_started"] == sent
    assert 2 <= written <= 10 * seconds + 2
    assert files.fsyncs == fsyncs
    run.close()


def test_the_terminal_snapshot_is_there_when_finish_returns(tmp_path):
    """Nothing has to be waited for."""
    with create(tmp_path / "r") as run:
        for number in range(500):
            run.append(TaskStarted(task_id=str(number)))
        run.finish("failed", "e")
        assert load(tmp_path / "r" / "progress.json")["status"] == "failed"
        assert load(tmp_path / "r" / "run_info.json")["status"] == "failed"


def test_appending_never_waits_for_a_snapshot(tmp_path):
    """With a disk that takes a second to replace a file, thousands of appends pass meanwhile."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(FaultyFiles):
        slow = False

        def replace(self, source, target) -> None:
            if self.slow:
                begun.set()
                assert go_on.wait(30)
            super().replace(source, target)

    files = Slow()
    run = create(tmp_path / "r", files=files)
    files.slow = True
    run.append(TaskStarted(task_id="t"))
    assert begun.wait(30)
    for number in range(5_000):
        run.append(TaskStarted(task_id=str(number)))
    assert not go_on.is_set()
    go_on.set()
    run.finish()
    run.close()
    check_rebuilds(tmp_path / "r")


@pytest.mark.parametrize("attempts", [50, 2000])
def test_bytes_written_for_one_plan_do_not_depend_on_how_many_there_were(tmp_path, attempts):
    """AgentCompass rewrites all plans for each new one; here the total stays a small multiple of the final record."""
    files = FaultyFiles()
    with create(tmp_path / "r", files=files, durability="os") as run:
        run.live.close()  # what its thread would do ten times a second is done here after every plan: the worst case
        for number in range(attempts):
            plan = {**PLAN, "number": number}
            run.append(ExecutionPlanResolved(task_id=f"t{number}", attempt=1, phase="plan", payload=plan))
            run.live.refresh()
        run.finish("completed")
    written = sum(size for name, size in files.replaced if name == "run_info.json")
    final = (tmp_path / "r" / "run_info.json").stat().st_size
    assert written < 5 * final
    assert len(load(tmp_path / "r" / "run_info.json")["resolved_execution_plans"]) == attempts
    assert final / attempts < 1200
    check_rebuilds(tmp_path / "r")


@pytest.mark.parametrize("name", [*RUNS])
def test_run_info_in_pieces_is_run_info(name):
    """Made step by step, so that appending threads get their turn, and the same bytes."""
    info = load(ROOT / RUNS[name] / "run_info.json")
    assert b"".join(pretty_pieces(info)) == codec.dump_pretty(info, sort_keys=True)


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"resolved_execution_plans": {}},
        {"resolved_execution_plans": None, "é\n\ud800": float("nan")},
        {"resolved_execution_plans": {'t\n"\ud800': {"1": {"a": [], "b": "x\ny", "f": float("inf")}}, "": {}}},
    ],
)
def test_odd_run_info_in_pieces_is_the_same_bytes(info):
    """Empty, hostile and non-finite members included."""
    assert b"".join(pretty_pieces(info)) == codec.dump_pretty(info, sort_keys=True)


def test_a_snapshot_that_can_not_be_written_disturbs_nobody(tmp_path, caplog):
    """It is derived: a warning, another try, and recording goes on."""

    class NoSnapshots(FaultyFiles):
        broken = False

        def replace(self, source, target) -> None:
            if self.broken:
                raise OSError(28, "No space left on device")
            super().replace(source, target)

    files = NoSnapshots()
    run = create(tmp_path / "r", files=files)
    files.broken = True
    for _ in range(3):
        run.append(TaskStarted(task_id="t"))
        run.live.refresh()
    assert caplog.text.count("No space left") == 1
    assert [path for path in (tmp_path / "r").iterdir() if path.name.startswith(".tmp.")] == []
    files.broken = False
    run.finish()
    run.close()
    check_rebuilds(tmp_path / "r")


def test_many_threads_and_tasks_end_with_snapshots_equal_to_the_fold(tmp_path):
    """A hundred threads, then a thousand asyncio tasks."""
    with create(tmp_path / "r") as run:
        threads = [threading.Thread(target=record_task, args=(run, f"thread {n}", 3)) for n in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        async def work(number: int) -> None:
            await run.append_async(TaskStarted(task_id=f"task {number}"))
            await asyncio.sleep(0)
            await run.append_async(TaskFinished(task_id=f"task {number}", status="completed"))

        async def main() -> None:
            await asyncio.gather(*(work(number) for number in range(1000)))
            await run.sync_async()

        asyncio.run(main())
        told = run.progress
        run.finish("completed")
    assert (told["finished_tasks"], told["running_tasks"]) == (1100, 0)
    check_rebuilds(tmp_path / "r")


# -- what must not be written


def test_secrets_are_masked_in_every_file(tmp_path, monkeypatch):
    """By key, by form and by value: in the stream, both snapshots, params and the log; names of the envelope stay."""
    secret, token = "sk-0123456789abcdef0123", "hf_" + "aB3dE6gH9j" * 4
    monkeypatch.setenv("MY_SERVICE_TOKEN", "zyxw-plain-looking-9876")
    with pytest.raises(RuntimeError), create(tmp_path / "r", origin=Origin("o", "o/0", "n", 0)) as run:
        run.append(PhaseChanged(task_id="t", payload={"error": f"GET https://u:pa55word@h/ {token}", "max_tokens": 5}))
        run.append(ExecutionPlanResolved(task_id="t", attempt=1, payload={**PLAN, "headers": {"X-Auth": "abcdefgh"}}))
        run.append(UnknownEvent(event="later", payload={"argv": ["x", "--api-key", "abcdef123456"]}))
        retry = AttemptRetryPayload(retry=1, matched_pattern="zyxw-plain-looking-9876")
        run.append(AttemptRetry(task_id="t", attempt=1, payload=retry))
        logging.getLogger("runtime.runner").warning("calling with %s", secret)
        raise RuntimeError(f"refused: {secret}")
    content = b"".join(path.read_bytes() for path in (tmp_path / "r").iterdir())
    for text in (secret, token, "pa55word", "abcdefgh", "abcdef123456", "zyxw-plain-looking-9876"):
        assert text.encode() not in content
    assert b'"max_tokens":5' in content
    assert b'"request_key":"o/0"' in content
    assert b"calling with" in (tmp_path / "r" / "run.log").read_bytes()
    check_rebuilds(tmp_path / "r")


def test_the_callers_own_objects_are_left_alone(tmp_path):
    """Masking copies; what the evaluation goes on using is untouched."""
    payload = {"api_key": "abcdefgh12345", "nested": {"password": "x" * 9}}
    with create(tmp_path / "r") as run:
        run.append(PhaseChanged(task_id="t", payload=payload))
        run.finish()
    assert payload == {"api_key": "abcdefgh12345", "nested": {"password": "x" * 9}}


# -- errors for the caller


def test_an_append_that_fails_is_the_callers_to_hear(tmp_path):
    """Disk full: told at once, nothing half written, and the run can still be finished when there is room."""
    files = FaultyFiles()
    with create(tmp_path / "r", files=files) as run:
        files.room = 10
        with pytest.raises(OutputError, match="No space left"):
            run.append(TaskStarted(task_id="t"))
        files.room = None
        run.append(TaskStarted(task_id="t"))
        run.finish()
    check_rebuilds(tmp_path / "r")


def test_a_poisoned_log_does_not_hide_the_callers_own_error(tmp_path):
    """The end can't be recorded, and the exception that mattered is still the one that arrives."""
    files = FaultyFiles()
    with pytest.raises(ValueError, match="mine"), create(tmp_path / "r", files=files) as run:
        files.fsync_errno = 5
        with pytest.raises(LogPoisonedError):
            run.sync()
        raise ValueError("mine")
    assert is_locked(tmp_path / "r") is False


def test_a_forked_child_leaving_the_block_ends_nothing(tmp_path):
    """The run is the parent's: the child's exit writes no end and takes no lock with it."""
    with create(tmp_path / "r") as run:
        child = os.fork()
        if child == 0:
            try:
                run.__exit__(RuntimeError, RuntimeError("child"), None)
                run.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        run.append(TaskStarted(task_id="t"))
        run.finish()
    assert [event["event"] for event in events(tmp_path / "r")] == ["run_started", "task_started", "run_finished"]
    check_rebuilds(tmp_path / "r")


def test_a_program_that_ends_without_closing_leaves_its_last_snapshot(tmp_path):
    """The end of the interpreter is no crash."""
    script = (
        "import sys\n"
        "from eventstore.format.events import AttemptStarted\n"
        "from eventstore.recording.recorder import RunRecorder\n"
        "parts = ('model', 'benchmark', 'harness', 'environment')\n"
        "run = RunRecorder.create(sys.argv[1], request={name: {'id': name} for name in parts})\n"
        "for _ in range(3000): run.append(AttemptStarted(task_id='t', attempt=1))\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "r"], cwd=ROOT.parent.parent.parent, check=True)
    assert load(tmp_path / "r" / "progress.json")["attempts_started"] == 3000
    assert read_witness(tmp_path / "r").mark.seq == 3000
    check_rebuilds(tmp_path / "r")


def test_it_is_an_asynchronous_context_too(tmp_path):
    """`async with` ends the run as `with` does."""

    async def main() -> None:
        async with create(tmp_path / "r") as run:
            await run.append_async(TaskStarted(task_id="t"))
            await run.finish_async("completed")
            with pytest.raises(UsageError):
                await run.append_async(TaskStarted(task_id="t"))

    asyncio.run(main())
    assert load(tmp_path / "r" / "run_info.json")["status"] == "completed"
    check_rebuilds(tmp_path / "r")
