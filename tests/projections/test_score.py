"""The score of a run: what counts, and the recomputation, which AgentCompass 1.0.1's own aggregation confirms."""

import json
import lzma
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from projections.score import AttemptScores, CoverageFold, Difference, ScoreFold, TaskScores, outcome_of
from projections.summary import differing_line, normal_lines, summary_lines
from tests.tools.agentcompass_side import PYTHON, needs_agentcompass

Json = dict[str, Any]
DATA = Path(__file__).parents[1] / "data" / "scores.jsonl.xz"
PROGRAM = Path(__file__).parents[1] / "tools" / "agentcompass_scores.py"


def tasks_of(case: Json) -> Iterator[TaskScores]:
    for task in case["tasks"]:
        attempts = {}
        for number, attempt in task["attempts"].items():
            severities = {issue["severity"] for issue in attempt["issues"]}
            severity = next((name for name in ("fatal", "error", "warning") if name in severities), "")
            attempts[int(number)] = AttemptScores(attempt["status"], attempt["metrics"], severity)
        yield TaskScores(task["task_id"], task["category"], attempts)


def fold(case: Json, metrics: Json | None = None) -> tuple[list[Difference], list[str]]:
    score = ScoreFold(metrics or case["metrics"], case["hierarchy"])
    for task in tasks_of(case):
        score.add(task)
    return list(score.differences()), score.problems


def check(case: Json) -> None:
    assert fold(case) == ([], [])
    page = summary_lines(case["metrics"], case["model"], case["benchmark"])
    assert page is not None
    assert differing_line(page, normal_lines(case["summary"])) is None


def recorded() -> list[Json]:
    with lzma.open(DATA, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_what_agentcompass_computed_is_computed_again() -> None:
    """Recorded cases of every policy: reducers, category means, hierarchies, fatal issues, early stops, gaps."""
    cases = recorded()
    for case in cases:
        check(case)
    assert {case["metrics"]["aggregation"] for case in cases} == {
        "micro_weighted",
        "category_mean",
        "category_hierarchy",
    }
    assert {case["metrics"]["evaluation_failed"] for case in cases} == {True, False}
    reducers = {series["reducer"] for case in cases for series in case["metrics"]["series"]}
    assert reducers == {"native", "avg", "pass"}


@needs_agentcompass
@pytest.mark.parametrize("seed", [2, 3])
def test_what_agentcompass_computes_now_is_computed_again(seed: int) -> None:
    """Fresh details, aggregated by the real one."""
    argv = [PYTHON, str(PROGRAM), str(seed), "300"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    for line in done.stdout.splitlines():
        check(json.loads(line))


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers of series that a report states as results."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        here = (*path, name)
        if isinstance(member, int | float) and not isinstance(member, bool):
            if path and name not in ("k", "precision"):
                yield here
        else:
            yield from numbers(member, here)


def test_no_number_can_change_without_a_difference() -> None:
    """Every single value and count of a report: changed by a little, it is found."""
    for case in recorded()[:25]:
        for path in numbers(case["metrics"]["series"]):
            changed = deepcopy(case["metrics"])
            place: Any = changed["series"]
            for name in path[:-1]:
                place = place[name]
            stored = place[path[-1]]
            place[path[-1]] = stored + 1 if isinstance(stored, int) else stored * 1.001 + 0.01
            assert fold(case, changed)[0], path


def test_an_unknown_policy_is_not_checked_and_not_wrong() -> None:
    """A reducer or an aggregation of the benchmark's own: a reason in words, and no difference."""
    case = recorded()[0]
    for name, value in (("reducer", "median"), ("aggregation", "ratio_of_sums")):
        changed = deepcopy(case["metrics"])
        changed["series"][0][name] = value
        changed["series"][0]["value"] = 0.123
        differences, problems = fold(case, changed)
        assert not differences and len(problems) == 1 and value in problems[0]
    changed = deepcopy(case["metrics"]) | {"strategy": "best"}
    assert fold(case, changed) == ([], ["the strategy 'best' is not known here"])


OUTCOMES = [
    ("completed", "", "answered"),
    ("completed", "warning", "answered"),
    ("completed", "error", "infrastructure_failed"),
    ("completed", "fatal", "infrastructure_failed"),
    ("run_error", "error", "infrastructure_failed"),
    ("run_error", "", "infrastructure_failed"),
    ("eval_error", "fatal", "infrastructure_failed"),
    ("cancelled", "", "never_run"),
    ("interrupted", "warning", "never_run"),
    ("skipped", "", "never_run"),
    ("skipped", "error", "infrastructure_failed"),
    (None, "", "never_run"),
]


@pytest.mark.parametrize(("status", "severity", "outcome"), OUTCOMES)
def test_an_attempt_counts_once(status: str | None, severity: str, outcome: str) -> None:
    """The table of the module's docstring."""
    assert outcome_of(status, severity) == outcome


def test_what_was_planned_is_the_whole() -> None:
    """3 tasks of k = 2: one answered twice, one failed once and lacks an attempt, one has no result."""
    counted = CoverageFold(k=2)
    counted.add({1: AttemptScores("completed", {"correct": True}), 2: AttemptScores("completed", {"correct": False})})
    counted.add({1: AttemptScores("completed", {"correct": False}, "error")})
    found = counted.coverage(3)
    assert (found.planned, found.answered, found.infrastructure_failed, found.never_run) == (6, 2, 1, 3)
    assert found.score_answered == 0.5 and found.usable and found.reason is None


def test_a_success_ends_a_task_of_the_strategy_pass() -> None:
    """Attempts after it were never planned; after a failure they were."""
    counted = CoverageFold(k=3, strategy="pass")
    counted.add({1: AttemptScores("completed", {"correct": True})})
    counted.add({1: AttemptScores("completed", {"correct": False})})
    found = counted.coverage(2)
    assert (found.planned, found.answered, found.never_run) == (4, 2, 2)


def test_nothing_answered_is_not_usable_and_says_why() -> None:
    """An outage: every attempt failed; and a run without details."""
    counted = CoverageFold()
    counted.add({1: AttemptScores("completed", {"correct": False}, "error")})
    found = counted.coverage(1)
    assert not found.usable and found.score_answered is None and found.reason == "no attempt was answered"
    assert CoverageFold().coverage(12, stored=False).reason == "its task details are not stored"
