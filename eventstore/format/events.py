"""The thirteen events of a run, and the few of our own, as frozen structs.

An event is a fact in the past tense. Field names, their order and their meaning are those of the run-record
specification ("Fields on Every Event", "Events and Event-Specific Fields"). Tags are the storage format, so they are
written out. `timestamp` is Unix time in seconds, attempts count from 1, `request_index` from 0.

Values that a stream holds beyond these types (a number as category, say) are kept as they are by the tolerant reader
in `codec`: a struct here is what a writer promises, not what a damaged or foreign file is forced into.
"""

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, field

Json: TypeAlias = dict[str, Any]
"""A JSON object, in the order of its members."""

TerminalStatus: TypeAlias = Literal["completed", "failed", "cancelled", "timed_out"]


class Payload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the typed payloads: members that are absent stay absent, members that we don't know are kept.

    `extra` is unset, or holds *all* members as they were read, in their order, when the line had one that is not
    declared here. It never reaches a file under its own name.
    """

    extra: Json | UnsetType = field(default=UNSET, name="\ue000extra")


class RunStartedPayload(Payload, frozen=True, kw_only=True):
    """`request`, `started_at` (ISO 8601), `reused_from` are ours: with them run_info.json can be rebuilt."""

    benchmark: str | None | UnsetType = UNSET
    harness: str | None | UnsetType = UNSET
    environment: str | None | UnsetType = UNSET
    model: str | None | UnsetType = UNSET
    request: Json | UnsetType = UNSET
    started_at: str | UnsetType = UNSET
    reused_from: Json | UnsetType = UNSET


class TasksLoadedPayload(Payload, frozen=True, kw_only=True):
    """The payload of `tasks_loaded`: how many tasks there are."""

    total_tasks: int | UnsetType = UNSET


class ReuseLoadedPayload(Payload, frozen=True, kw_only=True):
    """`reused_severity_counts` groups the reused tasks by their highest issue severity."""

    reused_tasks: int | UnsetType = UNSET
    tasks_to_run: int | UnsetType = UNSET
    reused_severity_counts: dict[str, int] | UnsetType = UNSET


class TaskStartedPayload(Payload, frozen=True, kw_only=True):
    """Position and count used in scheduling; they don't identify a task."""

    index: int | UnsetType = UNSET
    total: int | UnsetType = UNSET


class TaskFinishedPayload(Payload, frozen=True, kw_only=True):
    """`severity` is the highest final issue severity (fatal, error, warning), or "" for none."""

    index: int | UnsetType = UNSET
    total: int | UnsetType = UNSET
    severity: str | None | UnsetType = UNSET


class AttemptRetryPayload(Payload, frozen=True, kw_only=True):
    """Why a result was discarded and what runs again; `retry` counts from 1 within one attempt."""

    retry: int | UnsetType = UNSET
    max_retries: int | UnsetType = UNSET
    retry_delay_seconds: float | None | UnsetType = UNSET
    stage: str | None | UnsetType = UNSET
    scope: str | None | UnsetType = UNSET
    matched_pattern: str | None | UnsetType = UNSET
    retry_detail: str | None | UnsetType = UNSET


class RunFinishedPayload(Payload, frozen=True, kw_only=True):
    """The payload of `run_finished`: the error of a run that failed."""

    error: str | None | UnsetType = UNSET


class Fact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag=""):
    """The envelope. `run_id` and `timestamp` left at their defaults are filled in by the recorder.

    `log` is the proof that a sealed line carries (see docs/format.md); `extra` holds envelope members that the
    specification doesn't name. Neither is set by a caller.
    """

    run_id: str = ""
    timestamp: int | float = 0
    task_id: str | None = None
    category: str | None = None
    attempt: int | None = None
    phase: str | None = None
    status: str | None = None
    payload: Any = {}
    orchestration_id: str | None = None
    request_key: str | None = None
    request_name: str | None = None
    request_index: int | None = None
    log: Raw | UnsetType = UNSET
    extra: Json | UnsetType = field(default=UNSET, name="\ue000extra")


class RunStarted(Fact, frozen=True, kw_only=True, tag="run_started"):
    """The first event of a run, or of a session that goes on with it."""

    payload: RunStartedPayload = RunStartedPayload()


class TasksLoaded(Fact, frozen=True, kw_only=True, tag="tasks_loaded"):
    """The number of tasks is known."""

    payload: TasksLoadedPayload = TasksLoadedPayload()


class ReuseLoaded(Fact, frozen=True, kw_only=True, tag="reuse_loaded"):
    """Results of an earlier run were brought in."""

    payload: ReuseLoadedPayload = ReuseLoadedPayload()


class TaskStarted(Fact, frozen=True, kw_only=True, tag="task_started"):
    """Work on a task began."""

    payload: TaskStartedPayload = TaskStartedPayload()


class PhaseChanged(Fact, frozen=True, kw_only=True, tag="phase_changed"):
    """The payload is open: operations, sizes, budgets, errors, as the phase has them."""

    payload: Json = {}


class AttemptStarted(Fact, frozen=True, kw_only=True, tag="attempt_started"):
    """An attempt at a task began."""

    payload: Json = {}


class ExecutionPlanResolved(Fact, frozen=True, kw_only=True, tag="execution_plan_resolved"):
    """The payload is the resolved plan itself, nulls and empty members included; see `projections.snapshots.plans`."""

    payload: Json = {}


class AttemptRetry(Fact, frozen=True, kw_only=True, tag="attempt_retry"):
    """An attempt failed and begins again."""

    payload: AttemptRetryPayload = AttemptRetryPayload()


class AttemptFinished(Fact, frozen=True, kw_only=True, tag="attempt_finished"):
    """An attempt ended; `status` says how."""

    payload: Json = {}


class PartialSaved(Fact, frozen=True, kw_only=True, tag="partial_saved"):
    """The result of a task is saved."""

    payload: Json = {}


class TaskFinished(Fact, frozen=True, kw_only=True, tag="task_finished"):
    """A task ended; `status` says how."""

    payload: TaskFinishedPayload = TaskFinishedPayload()


class SummaryStarted(Fact, frozen=True, kw_only=True, tag="summary_started"):
    """All tasks are over and the summary of the run is being made."""

    payload: Json = {}


class RunFinished(Fact, frozen=True, kw_only=True, tag="run_finished"):
    """The terminal event; `status` is `completed`, `failed`, `cancelled` or `timed_out`."""

    payload: RunFinishedPayload = RunFinishedPayload()


class MetricArtifactsWritten(Fact, frozen=True, kw_only=True, tag="metric_artifacts_written"):
    """Ours: the `metric_artifacts` record, each time metric files were written."""

    payload: Json = {}


class StreamRepaired(Fact, frozen=True, kw_only=True, tag="stream_repaired"):
    """Ours: what `repair` removed or set aside, and the digest with which the chain goes on."""

    payload: Json = {}


class StreamScrubbed(Fact, frozen=True, kw_only=True, tag="stream_scrubbed"):
    """Ours: this stream is a copy whose credentials were masked, and whose lines were sealed again."""

    payload: Json = {}


class RecordsLost(Fact, frozen=True, kw_only=True, tag="records_lost"):
    """Ours: `count`, `first_timestamp`, `last_timestamp`, `reason` of events that could not be written."""

    payload: Json = {}


class UnknownEvent(Struct, frozen=True, kw_only=True):
    """An event of a type that this version doesn't know. Nothing of it is lost."""

    event: str
    run_id: str = ""
    timestamp: int | float = 0
    task_id: str | None = None
    category: str | None = None
    attempt: int | None = None
    phase: str | None = None
    status: str | None = None
    payload: Json = {}
    orchestration_id: str | None = None
    request_key: str | None = None
    request_name: str | None = None
    request_index: int | None = None
    log: Raw | UnsetType = UNSET
    extra: Json | UnsetType = UNSET


SpecifiedEvent: TypeAlias = (
    RunStarted
    | TasksLoaded
    | ReuseLoaded
    | TaskStarted
    | PhaseChanged
    | AttemptStarted
    | ExecutionPlanResolved
    | AttemptRetry
    | AttemptFinished
    | PartialSaved
    | TaskFinished
    | SummaryStarted
    | RunFinished
)
AdministrativeEvent: TypeAlias = MetricArtifactsWritten | StreamRepaired | StreamScrubbed | RecordsLost
KnownEvent: TypeAlias = SpecifiedEvent | AdministrativeEvent
Event: TypeAlias = KnownEvent | UnknownEvent

SPECIFIED_EVENTS: dict[str, type[Fact]] = {
    kind.__struct_config__.tag: kind  # type: ignore[misc]
    for kind in (
        RunStarted,
        TasksLoaded,
        ReuseLoaded,
        TaskStarted,
        PhaseChanged,
        AttemptStarted,
        ExecutionPlanResolved,
        AttemptRetry,
        AttemptFinished,
        PartialSaved,
        TaskFinished,
        SummaryStarted,
        RunFinished,
    )
}
ADMINISTRATIVE_EVENTS: dict[str, type[Fact]] = {
    "metric_artifacts_written": MetricArtifactsWritten,
    "stream_repaired": StreamRepaired,
    "stream_scrubbed": StreamScrubbed,
    "records_lost": RecordsLost,
}
KNOWN_EVENTS: dict[str, type[Fact]] = SPECIFIED_EVENTS | ADMINISTRATIVE_EVENTS

ENVELOPE = (
    "run_id",
    "event",
    "timestamp",
    "task_id",
    "category",
    "attempt",
    "phase",
    "status",
    "payload",
    "orchestration_id",
    "request_key",
    "request_name",
    "request_index",
)
"""The thirteen members of every line, in the order of the specification."""

PHASES = (
    "plan",
    "open_environment",
    "prepare_task",
    "start_harness",
    "run_harness",
    "run_task",
    "collect_artifacts",
    "download_artifacts",
    "recover_evaluation",
    "save_evaluation_checkpoint",
    "evaluate_environment",
    "evaluate",
    "save_partial",
    "analyze",
)
"""The phases that the specification names. Any other string is a phase too (`retry_wait` was seen)."""

SEVERITIES = ("fatal", "error", "warning")
"""Issue severities, the highest first."""

TERMINAL_STATUSES: tuple[TerminalStatus, ...] = ("completed", "failed", "cancelled", "timed_out")


def event_name(event: Event) -> str:
    """Return the stored name of an event's type, `task_finished` for a `TaskFinished`."""
    if isinstance(event, UnknownEvent):
        return event.event
    return str(event.__struct_config__.tag)
