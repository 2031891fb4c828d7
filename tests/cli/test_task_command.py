"""`task`: one task over attempts, found by any unique part of its id."""

import json

import pytest

from eventstore.errors import InputError, UsageError
from eventstore.operations.moment import match_task, open_moment
from eventstore.operations.task import task_page
from tests.tools.commands import Command
from tests.tools.failures import Copy, drop
from tests.tools.recorded import RUNS


def test_a_retried_task_is_told_over_its_attempts(run_dir: Copy, command: Command) -> None:
    """Phases with durations, the retry with its reason from the file that moved, plan, result, checkpoint, log."""
    run = run_dir("r_retry2")
    assert command("task", run, "001", "--json") == 0
    page = command.document
    assert page["task_id"] == "arith-001" and page["state"] == "normal" and page["status"] == "completed"
    first, second = page["attempts"]
    phases = [phase["phase"] for phase in first["phases"]]
    assert phases[:4] == ["plan", "open_environment", "prepare_task", "retry_wait"]
    assert all(phase["duration_seconds"] >= 0 for phase in first["phases"] + second["phases"])
    (retry,) = first["retries"]
    (issue,) = retry["issues"]
    assert retry["stage"] == "prepare_task" and issue["message"] == "RuntimeError: transient network glitch"
    assert (run / retry["file"]).exists() and not second["retries"]
    assert first["plan"]["applied_recipes"] == [] and first["result"]["metrics"] == {"correct": True}
    assert (run / first["result"]["file"]).exists() and first["checkpoint"]["evaluation"]
    assert page["phases"][0]["phase"] == "save_partial"
    lines = (run / "run.log").read_text().splitlines()
    assert page["log"]["count"] == sum("arith-001" in line for line in lines)
    assert all(lines[entry["line"] - 1].startswith(entry["text"][:200]) for entry in page["log"]["lines"])


def test_a_part_of_an_id_must_be_unique(run_dir: Copy, command: Command) -> None:
    """More than one match, or none: exit code 2, with the candidates in words."""
    run = run_dir("r_retry2")
    assert command("task", run, "arith-01") == 2
    assert "'arith-010', 'arith-011'" in command.err
    assert command("task", run, "ARITH-011", "--json") == 0 and command.document["task_id"] == "arith-011"
    assert command("task", run, "nothing", "--json") == 2
    assert "no task id" in command.document["error"]["message"]


def test_an_exact_id_wins_over_longer_ones() -> None:
    """`t1` is t1, although t10 has it in its name."""
    assert match_task("t1", ["t10", "t1", "t11"], "run") == "t1"  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="and 80 more"):
        match_task("t", [f"t{n}" for n in range(100)], "run")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", RUNS)
def test_every_task_of_every_run_has_a_page(name: str, run_dir: Copy, command: Command) -> None:
    """By its whole id, whatever is in that; in text no control character comes through."""
    run = run_dir(name)
    lines = [json.loads(line) for line in (run / "progress.jsonl").read_bytes().splitlines()]
    for task_id in sorted({event["task_id"] for event in lines if event["task_id"]}):
        page = task_page(run, task_id)
        assert page["task_id"] == task_id and page["in_stream"]
        assert bool(page["in_flight"]) == (page["finishes"] == 0)
    if lines[-1]["task_id"] or name == "r_odd":
        wanted = next(event["task_id"] for event in lines if event["task_id"])
        assert command("task", run, wanted) == 0
        assert not set("\x1b\t\r") & set(command.out)


def test_a_reused_task_comes_from_elsewhere(run_dir: Copy, command: Command) -> None:
    """It has results and no event in this stream: the source is named."""
    run = run_dir("r_resumed")
    streamed = {json.loads(line)["task_id"] for line in (run / "progress.jsonl").read_bytes().splitlines()}
    stored = [json.loads(path.read_text())["task_id"] for path in run.glob("details/*/*/task.json")]
    reused = next(task_id for task_id in stored if task_id not in streamed)
    assert command("task", run, reused, "--json") == 0
    page = command.document
    assert not page["in_stream"] and page["reused_from"]["run_id"] == "r_kill_mid" and page["attempts"][0]["result"]
    assert command("task", run, reused) == 0 and "reused" in command.out


def test_a_run_without_details_or_log_still_has_pages(run_dir: Copy, command: Command) -> None:
    """The stream alone is enough; a run without a task says so."""
    run = drop(run_dir("r_ok"), "details", "run.log")
    assert command("task", run, "arith-002", "--json") == 0
    page = command.document
    assert page["state"] is None and page["log"]["count"] == 0 and page["attempts"][0]["phases"]
    with pytest.raises(InputError, match="no task"):
        task_page(run_dir("p_load"), "x")


def test_moments_are_named_after_an_at_sign(run_dir: Copy) -> None:
    """RUN@N; a path that has an @ of its own is that path."""
    run = run_dir("r_ok")
    assert open_moment(run) == (run, None)
    path, moment = open_moment(f"{run}@20")
    assert path == run and moment is not None and moment.events == 20
    renamed = run.rename(run.parent / "r@7")
    assert open_moment(renamed) == (renamed, None)
    with pytest.raises(InputError):
        open_moment(f"{run}@x")
