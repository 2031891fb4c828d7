"""The real AgentCompass 1.0.1 records through our reporter, and its other commands accept what that leaves.

Needs an interpreter with agentcompass==1.0.1: the one named by COMPASS_ES_AGENTCOMPASS_PYTHON. Without it these tests
are skipped; those of the reporter by itself run everywhere.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from eventstore.errors import UsageError
from eventstore.format.events import RunStarted, TaskStarted
from eventstore.operations.replay import replay_run
from eventstore.recording.agentcompass import reporter
from eventstore.recording.progress_line import ProgressLine, describe
from eventstore.recording.recorder import RunRecorder
from eventstore.stream.lock import is_locked
from eventstore.stream.scan import scan
from projections.snapshots import counts
from tests.tools.agentcompass_side import PYTHON, needs_agentcompass

ROOT = Path(__file__).parents[2]


def toy(results: Path, run_id: str, **options) -> dict:
    """Let AgentCompass do something with the toy benchmark, and give back what it told."""
    argv = [PYTHON, str(ROOT / "tests" / "tools" / "agentcompass_toy.py"), str(results), run_id, json.dumps(options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=300, cwd=results.parent, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}


def events(run_dir: Path) -> list[dict]:
    return [json.loads(record.line) for record in scan(run_dir)]


def own_tracker_says(run_dir: Path) -> dict:
    """What AgentCompass's own tracker makes of the events in a stream."""
    script = (
        "import json, sys\n"
        "from types import SimpleNamespace as N\n"
        "from agentcompass.runtime.progress import ProgressEvent, ProgressTracker\n"
        "lines = [json.loads(line) for line in open(sys.argv[1], encoding='utf-8')]\n"
        "ids = {k: N(id=lines[0]['payload'][k]) for k in ('benchmark', 'harness', 'environment', 'model')}\n"
        "tracker = ProgressTracker(run_id=lines[0]['run_id'], request=N(**ids))\n"
        "tracker.started_at = lines[0]['timestamp']\n"
        "for line in lines:\n"
        "    line.pop('log')\n"
        "    if line['event'] != 'metric_artifacts_written': tracker.apply(ProgressEvent(**line))\n"
        "print(json.dumps(tracker.snapshot))\n"
    )
    argv = [PYTHON, "-c", script, str(run_dir / "progress.jsonl")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """The results folder with one run, r1, that our reporter recorded."""
    folder = tmp_path_factory.mktemp("agentcompass") / "results"
    told = toy(folder, "r1", tasks=8, k=2, callback=True)
    assert told["error"] == ""
    assert "8/8 tasks · completed" in told["stderr"]
    run_dir = folder / "toy_toy_sums_toy_adder" / "r1"
    assert told["callbacks"] == len(events(run_dir)) - 1  # the record of metric files is our own
    return folder


@needs_agentcompass
def test_a_real_run_completes_and_its_stream_proves_itself(results):
    """Sealed from the first line, the run's own id and orchestration on every event, snapshots equal to the fold."""
    run_dir = results / "toy_toy_sums_toy_adder" / "r1"
    found = scan(run_dir)
    records = [json.loads(record.line) for record in found]
    assert dict(found.verdicts) == {}
    assert [record["log"]["seq"] for record in records] == list(range(len(records)))
    assert {record["run_id"] for record in records} == {"r1"}
    assert {record["request_name"] for record in records} == {"run"}
    assert all(record["request_key"].startswith(record["orchestration_id"]) for record in records)
    info = json.loads((run_dir / "run_info.json").read_text())
    assert records[0]["payload"]["request"] == info["request"]
    assert len(info["resolved_execution_plans"]) == 8
    assert info["status"] == "completed"
    replayed = replay_run(run_dir, write=False)
    assert replayed.changed == []
    assert is_locked(run_dir) is False


@needs_agentcompass
def test_its_own_tracker_agrees_with_our_snapshot(results):
    """Counter by counter and key by key."""
    run_dir = results / "toy_toy_sums_toy_adder" / "r1"
    ours = json.loads((run_dir / "progress.json").read_text())
    theirs = own_tracker_says(run_dir)
    assert abs(ours.pop("elapsed_seconds") - theirs.pop("elapsed_seconds")) < 0.0015
    assert list(ours) == list(theirs)
    assert ours == theirs
    assert {ours[name] for name in ("total_tasks", "finished_tasks", "completed_tasks")} == {8}
    assert ours["attempts_finished"] == 16
    assert set(counts.COUNTERS) < set(ours)


@needs_agentcompass
def test_the_record_of_the_run_can_be_rebuilt_from_the_stream(results, tmp_path):
    """Everything but the second in which AgentCompass wrote the status."""
    run_dir = results / "toy_toy_sums_toy_adder" / "r1"
    (tmp_path / "progress.jsonl").write_bytes((run_dir / "progress.jsonl").read_bytes())
    replay_run(tmp_path)
    rebuilt, stored = (json.loads((folder / "run_info.json").read_text()) for folder in (tmp_path, run_dir))
    assert rebuilt.pop("finished_at")[:10] == stored.pop("finished_at")[:10]
    assert rebuilt == stored


@needs_agentcompass
def test_its_summary_analysis_and_reuse_accept_the_directory(results):
    """None of its commands stumbles over the lines' proofs or the lock file; verify finds nothing afterwards."""
    folder = results / "toy_toy_sums_toy_adder"
    before = (folder / "r1" / "progress.jsonl").read_bytes()
    assert toy(results, "r1", do="summary")["error"] == ""
    assert (folder / "r1" / "metrics.json").exists()
    assert toy(results, "r1", do="analysis")["error"] == ""
    assert toy(results, "r2", tasks=8, k=2, reuse_run_id="r1")["error"] == ""
    assert (folder / "r1" / "progress.jsonl").read_bytes() == before
    reused = json.loads((folder / "r2" / "progress.json").read_text())
    assert (reused["reused_tasks"], reused["status"]) == (8, "completed")
    assert json.loads((folder / "r2" / "run_info.json").read_text())["reused_from"]["run_id"] == "r1"
    verify = [sys.executable, "-c", "from cli.main import main; main()", "verify", "--json"]
    for run_id in ("r1", "r2"):
        done = subprocess.run([*verify, str(folder / run_id)], cwd=ROOT, capture_output=True, text=True)
        told = json.loads(done.stdout)
        assert [finding for finding in told["findings"] if finding["severity"] != "info"] == []
    for copy in folder.iterdir():
        assert set(scan(copy).verdicts) <= {"unsealed"}, copy


@needs_agentcompass
def test_a_run_that_agentcompass_fails_is_recorded_as_failed(tmp_path):
    """The reporter records what AgentCompass says, whatever it says."""
    told = toy(tmp_path / "results", "r1", tasks=0)
    run_dir = tmp_path / "results" / "toy_toy_sums_toy_adder" / "r1"
    info = json.loads((run_dir / "run_info.json").read_text())
    assert events(run_dir)[-1]["status"] == info["status"]
    assert bool(told["error"]) == (info["status"] != "completed")


@needs_agentcompass
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_an_end_that_agentcompass_stored_outlives_a_stream_that_stopped_before_it(results, tmp_path, command, status):
    """Killed between the status and `run_finished`: no command removes, doubts or contradicts what is stored."""
    run_dir = tmp_path / "r1"
    shutil.copytree(results / "toy_toy_sums_toy_adder" / "r1", run_dir)
    check_stored_end(run_dir, status, command)


@needs_agentcompass
def test_one_reporter_serves_request_after_request(tmp_path):
    """A loop over models with one reporter: each run has its own whole stream."""
    told = toy(tmp_path / "results", "r3", after=["r1", "r2"], tasks=2)
    assert told["error"] == ""
    for name in ("r1", "r2", "r3"):
        run_dir = tmp_path / "results" / "toy_toy_sums_toy_adder" / name
        recorded = events(run_dir)
        assert {event["run_id"] for event in recorded} == {name}
        assert (recorded[0]["event"], recorded[-1]["event"]) == ("run_started", "run_finished")
        assert json.loads((run_dir / "progress.json").read_text())["finished_tasks"] == 2
        assert replay_run(run_dir, write=False).changed == []


# -- the reporter by itself, without AgentCompass


def check_stored_end(run_dir: Path, status: str, command) -> None:
    """Take the terminal event away, as a full disk does, and ask every command about the end that is stored."""
    stream, info_path = run_dir / "progress.jsonl", run_dir / "run_info.json"
    lines = stream.read_bytes().splitlines(keepends=True)
    stream.write_bytes(b"".join(lines[:-1]))
    lock = run_dir / "progress.lock"
    lock.write_bytes(lock.read_bytes()[:1024])  # the writer; the promise of the last line is gone with it
    end = {"status": status, "finished_at": "2030-01-01T00:00:00+00:00", "error": "it was so"}
    info = json.loads(info_path.read_text()) | end
    info_path.write_text(json.dumps(info))
    snapshot = run_dir / "progress.json"
    snapshot.write_text(json.dumps(json.loads(snapshot.read_text()) | {"finished_tasks": 0, "status": "running"}))
    assert command("replay", run_dir, "--force", "--json") == 0
    assert command.document["written"] == ["progress.json"]
    assert json.loads(info_path.read_text()) == info
    assert command("diagnose", run_dir, "--json") == 1
    report = command.document
    assert report["outcome"] == status
    assert [cause["code"] for cause in report["causes"]].count("records_stopped") == 1
    assert "process_died" not in [cause["code"] for cause in report["causes"]]
    assert command("show", run_dir, "--json") == 0 and command.document["status"] == status
    assert command("runs", run_dir, "--json") == 0 and command.document["runs"][0]["status"] == status
    assert command("query", "SELECT status FROM runs", run_dir, "--json") == 0
    assert command.document == [{"status": status}]
    assert command("close", run_dir, "--status", "timed_out") == 1
    assert f"run ended as {status}" in command.err and "--force" in command.err
    assert json.loads(info_path.read_text()) == info
    assert command("close", run_dir, "--status", status) == 0
    assert json.loads(info_path.read_text()) == info
    assert events(run_dir)[-1]["status"] == status


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_stored_end_outlives_a_stream_that_stopped_before_it(stand_in, tmp_path, command, status):
    """As with the real AgentCompass: the reporter does not own run_info.json, so what is stored there stays."""
    run_dir = prepare(tmp_path / "r")
    told = reporter(run_dir, display="none")
    told.emit("run_started", payload=IDS)
    told.emit("tasks_loaded", payload={"total_tasks": 1})
    told.emit("task_started", task_id="t")
    told.emit("task_finished", task_id="t", status="completed", payload={"severity": ""})
    told.emit("run_finished", status="completed")
    told.close()
    check_stored_end(run_dir, status, command)


def test_a_run_with_a_stored_end_is_continued_only_after_it_is_started_again(stand_in, tmp_path):
    """`RunRecorder.open` takes the stored end for the run's end, as it takes a recorded one."""
    run_dir = prepare(tmp_path / "r")
    told = reporter(run_dir, display="none")
    told.emit("run_started", payload=IDS)
    told.close()
    info = json.loads((run_dir / "run_info.json").read_text())
    (run_dir / "run_info.json").write_text(json.dumps(info | {"status": "failed", "finished_at": "x"}))
    with RunRecorder.open(run_dir) as run:
        assert run.finished
        with pytest.raises(UsageError, match="the run has finished"):
            run.append(TaskStarted(task_id="t"))
        assert json.loads((run_dir / "run_info.json").read_text())["status"] == "failed"
        run.append(RunStarted())
        run.append(TaskStarted(task_id="t"))
        assert "status" not in json.loads((run_dir / "run_info.json").read_text())
        run.close()
    assert "status" not in json.loads((run_dir / "run_info.json").read_text())
    assert replay_run(run_dir, write=False, force=True).changed == []


def test_plans_that_agentcompass_stored_win_over_those_of_the_reporters_stream(stand_in, tmp_path):
    """The file is not ours, and the event is masked by other rules than it."""
    run_dir = prepare(tmp_path / "r")
    told = reporter(run_dir, display="none")
    told.emit("run_started", payload=IDS)
    told.emit("execution_plan_resolved", task_id="t", attempt=1, phase="plan", payload={"environment": {"id": "ours"}})
    told.close()
    info = json.loads((run_dir / "run_info.json").read_text())
    plans = {"t": {"attempts": {"1": {"environment": {"id": "stored"}}}}}
    (run_dir / "run_info.json").write_text(json.dumps(info | {"resolved_execution_plans": plans}))
    record = replay_run(run_dir, write=False).snapshots.run_info
    assert record["resolved_execution_plans"] == plans


def test_a_second_request_gets_a_stream_of_its_own(stand_in, tmp_path):
    """After `close`, or after `run_finished` alone, the next `run_started` belongs to the run whose log is open now."""
    told = reporter(display="none")
    for name, closes in (("a", True), ("b", False), ("c", True)):
        handler = logging.FileHandler(prepare(tmp_path / name) / "run.log")
        logging.getLogger().addHandler(handler)
        try:
            told.emit("run_started", payload=IDS)
            told.emit("run_finished", status="completed")
            if closes:
                told.close()
        finally:
            logging.getLogger().removeHandler(handler)
            handler.close()
    for name in "abc":
        assert [event["event"] for event in events(tmp_path / name)] == ["run_started", "run_finished"]
    told.emit("task_started", task_id="late")
    assert len(events(tmp_path / "c")) == 2


@pytest.fixture
def stand_in(monkeypatch) -> None:
    """A module of AgentCompass's name with the one class that is asked for."""
    progress = ModuleType("agentcompass.runtime.progress")
    progress.ProgressReporter = type("ProgressReporter", (), {})  # type: ignore[attr-defined]
    log = ModuleType("agentcompass.runtime.logging")
    context = SimpleNamespace(orchestration_id="o", request_key="o/0", request_name="run", request_index=0)
    log.get_log_context = lambda: context  # type: ignore[attr-defined]
    for name in ("agentcompass", "agentcompass.runtime"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, progress.__name__, progress)
    monkeypatch.setitem(sys.modules, log.__name__, log)


def prepare(run_dir: Path) -> Path:
    """A directory as AgentCompass leaves it before the first event."""
    run_dir.mkdir()
    request = {name: {"id": name} for name in ("benchmark", "harness", "environment", "model")}
    info = {
        "run_id": "r1",
        "started_at": "2026-11-29T14:30:24+00:00",
        "request": request,
        "schema_version": "agentcompass.run_info.v3",
    }
    (run_dir / "run_info.json").write_text(json.dumps(info))
    return run_dir


IDS = {name: name for name in ("benchmark", "harness", "environment", "model")}


def test_without_agentcompass_it_says_so(monkeypatch):
    """Nothing of it is imported before a reporter is asked for."""
    monkeypatch.setitem(sys.modules, "agentcompass.runtime.progress", None)
    with pytest.raises(UsageError, match="AgentCompass can't be imported"):
        reporter()


def test_the_run_directory_is_found_by_the_open_log(stand_in, tmp_path):
    """The handler that takes this context's records tells where the run is; other runs' handlers don't."""
    ours, other = prepare(tmp_path / "ours"), prepare(tmp_path / "other")
    handlers = [logging.FileHandler(folder / "run.log") for folder in (other, ours)]
    handlers[0].addFilter(lambda record: False)
    for handler in handlers:
        logging.getLogger().addHandler(handler)
    try:
        told = reporter(display="none")
        told.emit("run_started", payload=IDS)
        told.emit("run_finished", status="completed")
        told.close()
    finally:
        for handler in handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()
    assert told.paths["progress_jsonl"] == str(ours / "progress.jsonl")
    assert [event["request_key"] for event in events(ours)] == ["o/0"] * 2
    assert not (other / "progress.jsonl").exists()


def test_values_without_a_form_in_json_become_text(stand_in, tmp_path):
    """As AgentCompass's own writer does it; unknown events are kept."""
    told = reporter(prepare(tmp_path / "r"), display="none")
    told.emit("run_started", payload=IDS)
    told.emit("phase_changed", task_id="t", phase="plan", payload={"path": Path("/x"), "n": float("nan")})
    told.emit("invented_later", payload={"a": 1})
    told.close()
    told.emit("run_finished", status="completed")
    recorded = events(tmp_path / "r")
    assert [event["event"] for event in recorded] == ["run_started", "phase_changed", "invented_later"]
    assert recorded[1]["payload"]["path"] == "/x"


def test_what_can_not_be_written_is_counted_and_the_evaluation_goes_on(stand_in, tmp_path, caplog, monkeypatch):
    """One loud message, then counts; `records_lost` stands in the stream as soon as writing works again."""
    monkeypatch.setattr("eventstore.recording.agentcompass.RETRY_SECONDS", 0.0)
    told = reporter(tmp_path / "r", display="none", durability="always")
    for _ in range(5):
        told.emit("phase_changed", task_id="t", phase="plan")
    assert told.lost == 5
    assert caplog.text.count("RECORDING FAILED") == 1
    assert "4 events of this run could not be recorded" in caplog.text
    prepare(tmp_path / "r")
    told.emit("task_started", task_id="t")
    told.close()
    lost, task = events(tmp_path / "r")
    assert (lost["event"], lost["payload"]["count"]) == ("records_lost", 5)
    assert "no such folder" in lost["payload"]["reason"]
    assert task["event"] == "task_started"
    assert told.lost == 0


def test_a_poisoned_log_is_left_and_opened_again(stand_in, tmp_path, monkeypatch):
    """A stream that was removed in the middle costs what it held, and is begun again only if nothing was promised."""
    monkeypatch.setattr("eventstore.recording.agentcompass.RETRY_SECONDS", 0.0)
    told = reporter(prepare(tmp_path / "r"), display="none")
    told.emit("run_started", payload=IDS)
    told._recorder.log._failure = UsageError("broken")
    told.emit("task_started", task_id="a")
    told.emit("task_started", task_id="b")
    told.close()
    assert [event["task_id"] for event in events(tmp_path / "r")] == [None, "a", "b"]
    assert dict(scan(tmp_path / "r").verdicts) == {}


def test_a_callback_that_fails_disturbs_nothing(stand_in, tmp_path):
    """It is the user's own code, and the run is more important."""

    def fail(event, progress) -> None:
        raise ValueError("mine")

    told = reporter(prepare(tmp_path / "r"), display="none", on_event=fail)
    told.emit("run_started", payload=IDS)
    assert told.snapshot["status"] == "running"
    told.close()
    assert len(events(tmp_path / "r")) == 1


class _Terminal:
    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_the_display_shows_counts_and_never_raw_text():
    """One line that is overwritten; control characters of a phase's name don't reach the terminal."""
    progress = {
        "total_tasks": 5,
        "finished_tasks": 2,
        "status": "running",
        "running_tasks": 2,
        "failed_tasks": 1,
        "current_phase_counts": {"\x1b[31mrun\x07": 1, "evaluate": 1},
    }
    assert describe(progress) == "2/5 tasks · running · 2 running · 1 failed · [31mrun 1, evaluate 1"
    terminal = _Terminal()
    line = ProgressLine("auto", terminal)  # type: ignore[arg-type]
    line.show(progress)
    line.show(progress)
    line.end(progress)
    assert terminal.text == f"\r\x1b[K{describe(progress)}\n"
    with pytest.raises(UsageError):
        ProgressLine("loud")  # type: ignore[arg-type]
