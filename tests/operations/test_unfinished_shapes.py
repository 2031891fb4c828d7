"""A result.json that holds no result, under a final state: AgentCompass scores such a task again, nothing keeps it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.operations.diagnose.diagnose import diagnose_run
from eventstore.operations.reuse.plan import plan_like_source
from eventstore.operations.verify.verify import verify_run
from eventstore.run.directory import RunDir


@pytest.mark.parametrize(("text", "code"), [("{}", "result_file"), ('{"retry_count": 0}', "result_missing")])
def test_a_result_without_a_result_is_not_finished(text: str, code: str, run_dir: Callable[[str], Path]) -> None:
    """`verify` has an error, and reuse runs the task again."""
    run = run_dir("r_ok")
    next(run.glob("details/normal/*/attempt-1/result.json")).write_text(text)
    assert code in verify_run(RunDir(run, "r_ok")).counts
    plan = plan_like_source(run)
    assert len(plan.reused) == 3 and plan.total_tasks == 4


def _result_file(run: Path) -> Path:
    return next(run.glob("details/normal/*/attempt-1/result.json"))


@pytest.mark.parametrize(
    "text", ["{}", '{"retry_count": 0}', '{"status": "completed", "issues": [], "retry_count": 0}']
)
def test_three_commands_have_one_definition_of_finished(text: str, run_dir: Callable[[str], Path]) -> None:
    """What `verify` has an error for is not complete for `diagnose`, and reuse runs it again."""
    run = run_dir("r_ok")
    _result_file(run).write_text(text)
    assert {"result_file", "result_missing"} & verify_run(RunDir(run, "r_ok")).counts.keys()
    results = diagnose_run(run)["results"]
    assert (results["complete"], results["missing"]) == (3, 1)
    assert len(plan_like_source(run).reused) == 3


@pytest.mark.parametrize("entry", [None, "attempt-2", 1, {}])
def test_an_odd_entry_of_the_index_takes_the_task_with_it(entry: object, run_dir: Callable[[str], Path]) -> None:
    """AgentCompass refuses the whole index, so every attempt runs again."""
    run = run_dir("r_ok")
    file = _result_file(run).parent.parent / "task.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"attempts": {"1": entry}}))
    assert "task_shape" in verify_run(RunDir(run, "r_ok")).counts
    assert diagnose_run(run)["results"]["complete"] == 3
    plan = plan_like_source(run)
    decision = next(task for task in plan.tasks if task.action != "keep")
    assert (len(plan.reused), decision.action, plan.attempts_to_run) == (3, "run", 1)
    assert "AgentCompass refuses its index" in decision.reason


def test_a_null_entry_beside_good_ones_is_refused_too(run_dir: Callable[[str], Path]) -> None:
    """A null entry for an attempt that never began takes the finished ones with it."""
    run = run_dir("r_ok")
    file = _result_file(run).parent.parent / "task.json"
    members = json.loads(file.read_text())
    file.write_text(json.dumps(members | {"attempts": members["attempts"] | {"2": None}}))
    assert len(plan_like_source(run).reused) == 3
    assert diagnose_run(run)["results"]["complete"] == 3


def test_fewer_attempts_than_asked_for_are_told(run_dir: Callable[[str], Path]) -> None:
    """AgentCompass keeps 1 of 3 attempts as a whole result; the plan does, too, and says so."""
    run = run_dir("r_ok")
    info = json.loads((run / "run_info.json").read_text())
    info["request"]["execution"]["attempts"] = {"k": 3, "strategy": "avg"}
    (run / "run_info.json").write_text(json.dumps(info))
    for file in run.glob("details/normal/*/task.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"attempt_plan": {"k": 3, "strategy": "avg"}}))
    plan = plan_like_source(run)
    assert plan.refusal is None and len(plan.reused) == 4
    assert all("1 of 3 attempts" in task.reason for task in plan.tasks)
    assert any("4 kept tasks have fewer attempts" in words for words in plan.warnings)
