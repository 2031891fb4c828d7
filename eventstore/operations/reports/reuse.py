"""What `reuse plan`, `reuse apply` and `reuse lineage` print with `--json`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from eventstore.operations.reuse.apply import Applied
from eventstore.operations.reuse.lineage import Lineage, TaskOrigin
from eventstore.operations.reuse.plan import ReusePlan
from projections.reuse import TaskDecision, Wanted


class PlanMembers(Struct, frozen=True, kw_only=True):
    """What a plan says. `refusal` tells why nothing may be reused; `reused_tasks` counts tasks that are kept whole,
    of `total_tasks` that were planned; `attempts_to_run` those that are left to run or to score again.

    `wanted` is what was asked for, with what the source said where nothing was asked. `warnings` are for people.
    """

    source: str
    run_id: str
    refusal: str | None
    wanted: Wanted
    total_tasks: int
    reused_tasks: int
    attempts_to_run: int
    reused_severity_counts: dict[str, int]
    warnings: list[str]
    tasks: list[TaskDecision]


class ReusePlanReport(PlanMembers, frozen=True, kw_only=True):
    """What a new run would take over, task by task."""

    schema: Literal["compass-es.reuse-plan.v1"] = "compass-es.reuse-plan.v1"


class ReuseApplyReport(PlanMembers, frozen=True, kw_only=True):
    """A plan, and what was brought into `target`.

    `reused` names tasks that were kept whole, `resumed` attempts of others by task. `failed` has the reason for each
    task, or `task/attempt`, that could not be brought over.
    """

    schema: Literal["compass-es.reuse-apply.v1"] = "compass-es.reuse-apply.v1"
    target: str
    reused: list[str]
    resumed: dict[str, list[int]]
    failed: dict[str, str]
    tasks_to_run: int


class LineageGeneration(Struct, frozen=True, kw_only=True):
    """One run of a lineage. `path` is None where the run was not found; `problem` says why."""

    run_id: str
    path: str | None
    problem: str | None


class LineageReport(Struct, frozen=True, kw_only=True):
    """The runs that a run reused, itself first, and the origin of every result in it."""

    schema: Literal["compass-es.reuse-lineage.v1"] = "compass-es.reuse-lineage.v1"
    run_id: str
    generations: list[LineageGeneration]
    tasks: list[TaskOrigin]


def plan_report(plan: ReusePlan, notes: Sequence[str]) -> ReusePlanReport:
    """Return the document of a plan; `notes` are put before its warnings."""
    return ReusePlanReport(
        **_plan_members(plan, notes),
        reused_tasks=len(plan.reused),
        reused_severity_counts=plan.severity_counts,
    )


def apply_report(plan: ReusePlan, notes: Sequence[str], target: Path, applied: Applied) -> ReuseApplyReport:
    """Return the document of a plan that was carried out; counts are of what was really kept."""
    return ReuseApplyReport(
        **_plan_members(plan, notes),
        reused_tasks=len(applied.reused),
        reused_severity_counts=applied.severity_counts,
        target=str(target),
        reused=applied.reused,
        resumed=applied.resumed,
        failed=applied.failed,
        tasks_to_run=applied.tasks_to_run,
    )


def _plan_members(plan: ReusePlan, notes: Sequence[str]) -> dict[str, Any]:
    """Return the members that are the same before and after a plan is carried out."""
    return {
        "source": str(plan.source),
        "run_id": plan.run_id,
        "refusal": plan.refusal,
        "wanted": plan.wanted,
        "total_tasks": plan.total_tasks,
        "attempts_to_run": plan.attempts_to_run,
        "warnings": [*notes, *plan.warnings],
        "tasks": plan.tasks,
    }


def lineage_report(lineage: Lineage) -> LineageReport:
    """Return the document of a lineage."""
    generations = [
        LineageGeneration(run_id=one.run_id, path=None if one.path is None else str(one.path), problem=one.problem)
        for one in lineage.generations
    ]
    return LineageReport(run_id=generations[0].run_id, generations=generations, tasks=lineage.tasks)
