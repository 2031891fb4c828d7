"""What `diff --json` prints."""

from typing import Any, Literal

from msgspec import Struct

from eventstore.format.events import Json

from .typed import Pair, typed


class DiffSide(Struct, kw_only=True, forbid_unknown_fields=True):
    """One side of a comparison; `at_event` is None for a whole run."""

    run_dir: str
    run_id: str | None
    events: int
    status: str | None
    at_event: int | None


class TaskSide(Struct, kw_only=True, forbid_unknown_fields=True):
    """A task on one side. `well` tells that it ended without an error; `metrics` are means over its attempts."""

    status: str | None
    severity: str | None
    attempts: int
    retries: int
    duration_seconds: float | None
    metrics: dict[str, float | None]
    well: bool
    ended: bool


class TaskChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """A task that is not the same on both sides; a side that does not have it is None."""

    task_id: str
    change: str
    a: TaskSide | None
    b: TaskSide | None


class PairedTimes(Struct, kw_only=True, forbid_unknown_fields=True):
    """How times of the tasks that both sides have compare; `p_value` is that of the two-sided sign test."""

    tasks: int
    longer: int
    shorter: int
    median_difference_seconds: float
    p_value: float


class PhaseChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """The finished stays in a phase on both sides, in numbers and seconds."""

    phase: str
    stays: Pair
    total_seconds: Pair
    median_seconds: Pair
    paired: PairedTimes | None


class MetricChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """A metric over the tasks that both sides have. `p_value` is None with too few that differ."""

    metric: str
    tasks: int
    mean: Pair
    higher: int
    lower: int
    test: str
    p_value: float | None


class ParameterChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """A member of the request that differs, by its dotted name."""

    name: str
    a: Any
    b: Any


class DiffReport(Struct, kw_only=True, forbid_unknown_fields=True):
    """What changed from `a` to `b`. `counts`, `issues` and `plans` have the numbers that differ, by name."""

    schema: Literal["compass-es.diff.v1"] = "compass-es.diff.v1"
    a: DiffSide
    b: DiffSide
    tasks: list[TaskChange]
    phases: list[PhaseChange]
    counts: dict[str, Pair]
    parameters: list[ParameterChange]
    metrics: list[MetricChange]
    issues: dict[str, Pair]
    plans: dict[str, Pair]


def diff_report(document: Json) -> DiffReport | Json:
    """Return the document of a comparison."""
    return typed(document, DiffReport)
