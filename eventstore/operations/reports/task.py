"""What `task --json` prints."""

from typing import Any, Literal

from msgspec import Struct

from eventstore.format.events import Json
from eventstore.results.result import Issue
from projections.timeline.in_flight import Flight

from .typed import typed


class PhaseStay(Struct, kw_only=True, forbid_unknown_fields=True):
    """A stay in a phase; `ended_by` is the event that ended it, None where it goes on. `updates` counts its events."""

    seq: int
    phase: str
    started_at: str | None
    updates: int
    ended_at: str | None
    duration_seconds: float | None
    ended_by: str | None
    ended_seq: int | None
    status: str | None
    error: str | None


class RetryNote(Struct, kw_only=True, forbid_unknown_fields=True):
    """One retry; `file` is the archive of what was discarded, below the run directory, with the issues in it."""

    seq: int
    retried_at: str | None
    retry: int | None
    max_retries: int | None
    stage: str | None
    scope: str | None
    matched_pattern: str | None
    retry_delay_seconds: float | None
    retry_detail: str | None
    phase: str | None
    discarded_seconds: float | None
    file: str | None
    issues: list[Issue]


class StoredResult(Struct, kw_only=True, forbid_unknown_fields=True):
    """A result.json; `problem` says why it can't be used. `metrics` and `final_answer` are the benchmark's own."""

    file: str | None
    problem: str | None
    status: str | None
    severity: str
    metrics: Json
    issues: list[Issue]
    retry_count: int
    final_answer: Any


class StoredCheckpoint(Struct, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint.json; `evaluation` tells that scoring can resume from it."""

    file: str | None
    problem: str | None
    evaluation: bool
    scheduler_status: str | None


class ArtifactFolder(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where declared artifacts are, below the run directory."""

    folder: str | None


class TaskAttempt(Struct, kw_only=True, forbid_unknown_fields=True):
    """One attempt. What the run directory does not hold is None; `plan` is the resolved plan as it was recorded."""

    attempt: int
    status: str | None
    started_at: str | None
    finished_at: str | None
    duration_seconds: float | None
    ended_by: str | None
    phases: list[PhaseStay]
    retries: list[RetryNote]
    plan: Json | None
    result: StoredResult | None
    checkpoint: StoredCheckpoint | None
    artifacts: ArtifactFolder | None
    archives: int


class LogLine(Struct, kw_only=True, forbid_unknown_fields=True):
    """A line of run.log, counted from 1."""

    line: int
    text: str


class LogLines(Struct, kw_only=True, forbid_unknown_fields=True):
    """The lines of run.log that name the task: how many there are, and the last of them."""

    count: int
    lines: list[LogLine]


class TaskReport(Struct, kw_only=True, forbid_unknown_fields=True):
    """One task. Without an event of it in the stream (`in_stream`), its times and counts are None."""

    schema: Literal["compass-es.task.v1"] = "compass-es.task.v1"
    task_id: str
    run_id: str | None
    in_stream: bool
    in_flight: list[Flight]
    ended: bool
    state: str | None
    directory: str | None
    last_phase: str | None
    category: str | None = None
    status: str | None = None
    severity: str | None = None
    position: int | None = None
    started_at: str | None = None
    finished_at: str | None = None
    duration_seconds: float | None = None
    attempts_finished: int | None = None
    retries: int | None = None
    starts: int | None = None
    finishes: int | None = None
    partials_saved: int | None = None
    last_event_at: str | None = None
    last_seq: int | None = None
    reused_from: Any
    ground_truth: Any
    attempt_plan: Json
    attempts: list[TaskAttempt]
    phases: list[PhaseStay]
    problems: list[str]
    log: LogLines


def task_report(page: Json) -> TaskReport | Json:
    """Return the document of a task."""
    return typed(page, TaskReport)
