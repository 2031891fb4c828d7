"""Rows of the timeline, and values as a column can hold them. Times are Unix seconds as the events have them."""

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from eventstore.format import codec

Moment: TypeAlias = Annotated[float, Meta(description="Unix time in seconds")]
JsonText: TypeAlias = Annotated[str, Meta(description="a JSON value as text")]


class TaskRow(Struct, gc=False):
    """One task. `status` and `severity` are those of its last `task_finished`; `starts` and `finishes` are 1 in order.

    `seconds` runs from the first start to the last finish, or to the run's last event where there is none, without the
    time between the death of one process and the work of the next.
    """

    task_id: str
    category: str | None = None
    status: str | None = None
    severity: str | None = None
    position: int | None = None
    started_at: Moment | None = None
    finished_at: Moment | None = None
    seconds: float | None = None
    attempts: int = 0
    attempts_finished: int = 0
    retries: int = 0
    starts: int = 0
    finishes: int = 0
    partials_saved: int = 0
    last_phase: str | None = None
    last_event_at: Moment | None = None
    last_seq: int = 0


class AttemptRow(Struct, gc=False):
    """One evaluation attempt of a task; `ended_by` is the event that ended it, None where nothing did.

    `died`: its process was gone before it ended. `seconds` counts as that of a task does.
    """

    task_id: str
    attempt: int | None
    category: str | None = None
    status: str | None = None
    started_at: Moment | None = None
    finished_at: Moment | None = None
    seconds: float | None = None
    ended_by: str | None = None
    starts: int = 0
    retries: int = 0
    phases: int = 0
    last_phase: str | None = None


class PhaseRow(Struct, gc=False):
    """One stay in a phase. `seconds` runs to its end, or to the run's last event where it has none; see AttemptRow."""

    seq: int
    task_id: str | None
    attempt: int | None
    category: str | None
    phase: str
    started_at: Moment
    updates: int
    ended_at: Moment | None = None
    seconds: float | None = None
    ended_by: str | None = None
    ended_seq: int | None = None
    status: str | None = None
    error: str | None = None


class RetryRow(Struct, gc=False):
    """One runtime retry. `phase` is the one it struck in; `discarded_seconds` what the attempt had run since its start
    or its last retry: time that bought nothing."""

    seq: int
    task_id: str | None
    attempt: int | None
    category: str | None
    retried_at: Moment
    retry: int | None = None
    max_retries: int | None = None
    stage: str | None = None
    scope: str | None = None
    matched_pattern: str | None = None
    retry_delay_seconds: float | None = None
    retry_detail: str | None = None
    phase: str | None = None
    discarded_seconds: float | None = None


class PlanRow(Struct, gc=False):
    """One resolved plan, as the payload that the event holds."""

    seq: int
    task_id: str | None
    attempt: int | None
    category: str | None
    resolved_at: Moment
    plan: JsonText


def safe_text(value: Any) -> str | None:
    """Return a value as text that UTF-8 has a form for: a lone surrogate becomes its escape, another type its JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return codec.utf8(value).decode("utf-8")
    return codec.dump_compact(value, default=str).decode("utf-8")


def as_int(value: Any) -> int | None:
    """Return a value as a whole number of 64 bits, None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63 else None


def as_float(value: Any) -> float:
    """Return a number as a float; one beyond all floats is infinite."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def elapsed_seconds(start: float | None, end: float | None) -> float | None:
    """Return the seconds between two times, each taken to the microsecond: what two TIMESTAMPs of SQL differ by.

    None where there is no such length: a time is missing, or beyond all numbers, or the clock went back between them.
    """
    seconds = _difference_seconds(start, end)
    return None if seconds is None or seconds < 0 else seconds


def clock_stepped(start: float | None, end: float | None) -> bool:
    """Return whether the clock went back between two times, so that no length can be told."""
    seconds = _difference_seconds(start, end)
    return seconds is not None and seconds < 0


def _difference_seconds(start: float | None, end: float | None) -> float | None:
    if start is None or end is None:
        return None
    try:
        return (round(end * 1e6) - round(start * 1e6)) / 1e6
    except (OverflowError, ValueError):
        return None
