"""`diff`: what changed between two runs, or two moments of one."""

import json
from math import comb

import pytest

from eventstore.operations.diff import diff_runs
from projections.diff import sign_test
from tests.tools.commands import Command
from tests.tools.failures import Copy, edit_info, events_of, write_events
from tests.tools.recorded import RUNS


@pytest.mark.parametrize("name", RUNS)
def test_a_run_does_not_differ_from_itself(name: str, run_dir: Copy, command: Command) -> None:
    """No task, count, parameter, issue or plan differs."""
    run = run_dir(name)
    assert command("diff", run, run, "--json") == 0
    report = command.document
    assert not any(report[part] for part in ("tasks", "counts", "parameters", "issues", "plans"))
    assert all(phase["stays"]["a"] == phase["stays"]["b"] for phase in report["phases"])
    assert all(metric["higher"] == metric["lower"] == 0 for metric in report["metrics"])


def test_two_runs_of_the_same_tasks(run_dir: Copy, command: Command) -> None:
    """Parameters, flips, retries, issue codes, and paired phase times with an exact test."""
    one, other = run_dir("r_retry"), run_dir("r_retry2")
    assert command("diff", one, other, "--json") == 0
    report = command.document
    assert report["counts"]["retries"] == {"a": 0, "b": 10} and report["counts"]["error_tasks"] == {"a": 4, "b": 0}
    changes = {task["task_id"]: task["change"] for task in report["tasks"]}
    assert changes["arith-000"] == changes["arith-008"] == "newly_well" and changes["arith-004"] == "flipped"
    assert changes["arith-001"] == "changed" and "arith-009" not in changes
    parameters = {change["name"]: change for change in report["parameters"]}
    assert parameters["execution.retry_pattern_list"]["b"] == ["400|bad request"]
    assert report["issues"] == {"error model_failed": {"a": 6, "b": 0}}
    (metric,) = report["metrics"]
    assert metric["tasks"] == 10 and (metric["higher"], metric["lower"]) == (2, 4)  # where both sides answered
    assert metric["p_value"] == pytest.approx(sign_test(2, 4))
    phases = {phase["phase"]: phase for phase in report["phases"]}
    assert phases["run_harness"]["paired"]["tasks"] == 12 and 0 < phases["run_harness"]["paired"]["p_value"] <= 1
    assert phases["retry_wait"]["stays"] == {"a": 0, "b": 10} and phases["retry_wait"]["paired"] is None
    assert command("diff", other, one, "--json") == 0
    assert {t["change"] for t in command.document["tasks"]} == {"newly_failing", "flipped", "changed"}


def test_tasks_appear_and_vanish(run_dir: Copy) -> None:
    """A task that only one side has."""
    one, other = run_dir("r_ok"), run_dir("r_ok")
    for run, gone in ((one, "arith-000"), (other, "arith-003")):
        write_events(run, [event for event in events_of(run) if event["task_id"] != gone])
        for path in run.glob(f"details/*/{gone}--*/task.json"):
            path.unlink()
    changes = {task["task_id"]: task["change"] for task in diff_runs(one, other)["tasks"]}
    assert changes == {"arith-000": "appeared", "arith-003": "vanished"}


def test_two_moments_of_one_run(run_dir: Copy, command: Command) -> None:
    """RUN@N against the whole: what was unfinished then, and what had not begun."""
    run = run_dir("r_ok")
    assert command("diff", f"{run}@20", run, "--json") == 0
    report = command.document
    assert report["a"]["at_event"] == 20 and report["a"]["events"] == 20 and report["b"]["events"] == 65
    changes = [task["change"] for task in report["tasks"]]
    assert changes == ["finished", "finished", "appeared", "appeared"]
    assert command("diff", f"{run}@20", f"{run}@20", "--json") == 0 and command.document["tasks"] == []
    assert command("diff", f"{run}@20", run) == 0 and "after 20 events" in command.out


def test_a_changed_parameter_is_named_and_secrets_are_not(run_dir: Copy, command: Command) -> None:
    """Dotted names, both values; a credential in one is masked."""
    one, other = run_dir("r_ok"), run_dir("r_ok")
    request = json.loads((other / "run_info.json").read_text())["request"]
    request["model"]["params"] = {"temperature": 0.7, "header": "Bearer sk-abcdefghijklmnopqrstuvwx123456"}
    edit_info(other, request=request)
    assert command("diff", one, other, "--json") == 0
    changed = {change["name"]: change["b"] for change in command.document["parameters"]}
    assert changed["model.params.temperature"] == 0.7 and "abcdefghij" not in command.out


def test_runs_that_cannot_be_compared(run_dir: Copy, command: Command) -> None:
    """A path without a run is told as such; a run without events is a side like any other."""
    assert command("diff", run_dir("r_ok"), "/nowhere/at/all", "--json") == 3
    assert command("diff", run_dir("p_load"), run_dir("r_ok"), "--json") == 0
    assert {task["change"] for task in command.document["tasks"]} == {"appeared"}


def test_the_sign_test_is_exact() -> None:
    """Two-sided, symmetric, 1 for a draw; against the sum of the binomial's terms."""
    for wins in range(12):
        for losses in range(12):
            count = wins + losses
            tail = sum(comb(count, k) for k in range(count + 1) if comb(count, k) <= comb(count, wins)) / 2**count
            assert sign_test(wins, losses) == pytest.approx(min(1.0, tail)) or abs(wins - losses) <= 1
            assert sign_test(wins, losses) == sign_test(losses, wins)
    assert sign_test(5, 5) == 1.0 and sign_test(0, 6) == 0.03125
