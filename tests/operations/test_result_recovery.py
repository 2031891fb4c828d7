"""After a crash of a runner: task results are finished or undone by whoever opens or repairs the run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.format.events import TasksLoaded, TasksLoadedPayload, TaskStarted
from eventstore.operations.repair.results import pending_results, recover_results
from eventstore.recording.recorder import RunRecorder
from eventstore.results.intents import Intent, write_intent
from eventstore.results.schema import AttemptResult
from eventstore.results.store import TaskStore
from eventstore.results.task_dirs import find_task, task_dirs
from eventstore.stream.filesystem import REAL
from tests.tools.commands import Command
from tests.tools.dying import deaths

REQUEST = {name: {"id": name} for name in ("model", "benchmark", "harness", "environment")}


def publish(store: TaskStore, task_id: str, answer: str = "7") -> Path:
    result = AttemptResult(status="completed", metrics={"correct": True}, final_answer=answer)
    plan = {"k": 1, "strategy": "avg"}
    return store.publish(task_id, category=None, ground_truth="7", attempt_plan=plan, attempts={1: result})


def begun_run(run: Path, *task_ids: str) -> Path:
    """A run whose writer went away with these tasks begun."""
    with RunRecorder.create(run, request=REQUEST, durability="os", file_log_level=None) as recorder:
        recorder.append(TasksLoaded(payload=TasksLoadedPayload(total_tasks=len(task_ids))))
        for task_id in task_ids:
            recorder.append(TaskStarted(task_id=task_id))
        recorder.close()
    return run


def saved_tasks(run: Path) -> list[str]:
    events = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    return [event["task_id"] for event in events if event["event"] == "partial_saved"]


def test_opening_a_run_appends_the_partial_saved_that_a_crash_left_out(tmp_path: Path) -> None:
    """Once, before anything else of the new session, and progress.json counts it; only published tasks are told."""
    run = begun_run(tmp_path / "r", "told", "untold", "begun")
    publish(TaskStore(run), "untold")
    TaskStore(run).begin_attempt("begun", 1)
    for _ in range(2):
        with RunRecorder.open(run, file_log_level=None) as recorder:
            assert recorder.progress["partials_saved"] == 1
            recorder.close()
    assert saved_tasks(run) == ["untold"]
    assert json.loads((run / "progress.json").read_text())["partials_saved"] == 1


def test_a_publication_that_died_anywhere_is_whole_once_the_run_is_opened(tmp_path: Path) -> None:
    """Old or new, no leftovers, nothing left to do; a task that is published is told exactly once."""
    run = tmp_path / "r"
    seen = set()

    def prepare() -> None:
        shutil.rmtree(run, ignore_errors=True)
        begun_run(run, "t")
        TaskStore(run, durable=False).begin_attempt("t", 1)

    for _ in deaths(lambda: publish(TaskStore(run), "t", "new"), prepare):
        RunRecorder.open(run, file_log_level=None).close()
        (task,) = task_dirs(run)
        assert not task.leftovers and not list((run / "details").glob(".*")) and pending_results(run) == []
        assert saved_tasks(run) == (["t"] if task.published else [])
        seen.add(task.published)
    assert seen == {False, True}


def test_opening_a_finished_run_sets_results_right_and_tells_nobody(tmp_path: Path) -> None:
    """After run_finished a partial_saved has no place; leftovers go all the same."""
    run = begun_run(tmp_path / "r", "late")
    with RunRecorder.open(run, file_log_level=None) as recorder:
        publish(TaskStore(run), "late")
        recorder.finish("failed")
    (run / "details" / ".publish-0123456789abcdef").mkdir()
    with RunRecorder.open(run, file_log_level=None) as recorder:
        recorder.close()
    assert saved_tasks(run) == [] and not list((run / "details").glob(".*"))


def test_results_that_cannot_be_set_right_do_not_keep_a_run_from_being_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A link on the way of a promised move is refused in the log, and the run is open."""
    run = begun_run(tmp_path / "r", "t")
    folder = TaskStore(run).begin_attempt("t", 1).parent
    write_intent(run / "details", Intent(folder.name, "normal"), durable=False, files=REAL)
    (tmp_path / "elsewhere").mkdir()
    (run / "details" / "normal").symlink_to(tmp_path / "elsewhere")
    with RunRecorder.open(run, file_log_level=None) as recorder:
        assert recorder.append(TaskStarted(task_id="u")) > 0
        recorder.close()
    assert "task results are left as the last writer left them" in caplog.text
    assert not list((tmp_path / "elsewhere").iterdir())


def test_opening_a_run_that_agentcompass_alone_wrote_leaves_its_results_alone(run_dir: Callable[[str], Path]) -> None:
    """It takes no lock, so it may be at work; its temporary files are its own."""
    run = run_dir("r_kill_mid")
    temporary = run / "details" / ".tmp.1.json"
    temporary.write_text("{}")
    RunRecorder.open(run, file_log_level=None).close()
    assert temporary.exists()


def test_repair_plans_and_finishes_half_published_results(tmp_path: Path, command: Command) -> None:
    """The plan names each step and changes nothing; --apply does it; after that there is nothing to do."""
    run = begun_run(tmp_path / "r", "untold", "promised")
    publish(TaskStore(run), "untold")
    store = TaskStore(run)
    store.save_result("promised", 1, AttemptResult(status="completed", metrics={"correct": True}))
    task = find_task(run, "promised")
    assert task is not None
    write_intent(run / "details", Intent(task.path.name, "normal"), durable=False, files=REAL)
    (run / "details" / ".publish-0123456789abcdef").mkdir()
    before = sorted(run.rglob("*"))
    assert command("repair", run, "--json") == 1
    plan = command.document["results"]
    assert plan == [
        f"finish the publication of {task.path.name} as normal",
        "remove details/.publish-0123456789abcdef",
        "append the partial_saved of untold that was left out",
    ]
    assert command("repair", run) == 1 and "task results: append the partial_saved of untold" in command.err
    assert "compass-es repair --apply" in command.err and sorted(run.rglob("*")) == before
    assert command("repair", run, "--apply", "--json") == 0
    assert command.document["results"] == plan and command.document["results_done"]
    assert command.document["applied"] is False  # the stream itself was whole
    assert "untold" in saved_tasks(run) and not list((run / "details").glob(".*"))
    moved = find_task(run, "promised")
    assert moved is not None and moved.state == "normal"
    assert command("repair", run) == 0 and "nothing to repair" in command.err


def test_repair_says_nothing_of_results_while_the_writer_lives(tmp_path: Path, command: Command) -> None:
    """What a publication has half done then is no damage."""
    run = begun_run(tmp_path / "r", "t")
    with RunRecorder.open(run, file_log_level=None) as recorder:
        (run / "details" / ".publish-0123456789abcdef").mkdir(parents=True)
        assert command("repair", run, "--json") == 0 and command.document["results"] == []
        assert command("repair", run, "--apply") == 1 and "the writer lives" in command.err
        recorder.close()
    assert command("repair", run, "--json") == 1


def test_results_of_a_run_without_a_stream_are_recovered(tmp_path: Path) -> None:
    """It failed before its first event: leftovers go, and no event is made up."""
    TaskStore(tmp_path).begin_attempt("t", 1)
    (tmp_path / "details" / ".publish-0123456789abcdef").mkdir()
    assert pending_results(tmp_path) == ["remove details/.publish-0123456789abcdef"]
    assert recover_results(tmp_path).removed == ["details/.publish-0123456789abcdef"]
    assert not (tmp_path / "progress.jsonl").exists()
