"""The real AgentCompass 1.0.1 records through our reporter, and its other commands accept what that leaves.

Needs an interpreter with agentcompass==1.0.1: the one named by COMPASS_ES_AGENTCOMPASS_PYTHON. Without it these tests
are skipped; those of the reporter by itself run everywhere.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from eventstore.errors import UsageError
from eventstore.operations.replay import replay_run
from eventstore.recording.agentcompass import reporter
from eventstore.recording.progress_line import ProgressLine, describe
from eventstore.stream.lock import is_locked
from eventstore.stream.scan import scan
from projections.snapshots import counts

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("COMPASS_ES_AGENTCOMPASS_PYTHON", "")
needs_agentcompass = pytest.mark.skipif(
    not PYTHON, reason="COMPASS_ES_AGENTCOMPASS_PYTHON names no interpreter with agentcompass==1.0.1"
)


def toy(results: Path, run_id: str, **options) -> dict:
    """Let AgentCompass do something with the toy benchmark, and give back what it told."""
    argv = [PYTHON, str(ROOT / "tests" / "agentcompass_toy.py"), str(results), run_id, json.dumps(options)]
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


# -- the reporter by itself, without AgentCompass


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
