"""What `diagnose --json` prints."""

from typing import Any, Literal

from msgspec import Struct

from eventstore.format.events import Json
from eventstore.run.liveness import Life
from projections.diagnose.certainty import Certainty
from projections.diagnose.facts import Evidence
from projections.sessions import Closing
from projections.timeline.in_flight import Flight

from .typed import typed


class Cause(Struct, kw_only=True, forbid_unknown_fields=True):
    """One cause. `message` is a sentence, `tasks` how many tasks share it, `times` how often it was seen."""

    code: str
    message: str
    certainty: Certainty
    blame: str
    evidence: list[Evidence]
    tasks: int
    task_ids: list[str]
    times: int


class StreamFacts(Struct, kw_only=True, forbid_unknown_fields=True):
    """What was read: accepted records, verdicts on lines, bytes of a torn tail, and steps of the clock."""

    events: int
    verdicts: dict[str, int]
    torn_bytes: int
    clock_steps: int
    analysis_only: bool


class Identity(Struct, kw_only=True, forbid_unknown_fields=True):
    """The components of the run."""

    benchmark: str | None
    harness: str | None
    environment: str | None
    model: str | None


class RetryReason(Struct, kw_only=True, forbid_unknown_fields=True):
    """Retries of one stage and pattern."""

    stage: str | None
    matched_pattern: str | None
    count: int
    discarded_seconds: float


class RetrySums(Struct, kw_only=True, forbid_unknown_fields=True):
    """Runtime retries, what they cost, and how many of the tasks ended well."""

    count: int
    discarded_seconds: float
    waited_seconds: float
    tasks: int
    recovered_tasks: int
    reasons: list[RetryReason]


class ResultCounts(Struct, kw_only=True, forbid_unknown_fields=True):
    """Tasks by what is stored of them; `stored` tells that there are task details at all."""

    complete: int
    partial: int
    missing: int
    stored: bool
    states: dict[str, int]


class ReuseEstimate(Struct, kw_only=True, forbid_unknown_fields=True):
    """How many tasks a new run would keep and run again; None where none can be kept.

    `keeps_failed` of them have fatal or error issues. It asks for the source's own retry budget and patterns.
    """

    keeps: int | None
    reruns: int | None
    estimate: bool
    keeps_failed: int | None
    attempts_to_run: int | None
    max_retries: int | None
    retry_patterns: list[str]


class ScoreFacts(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the score can be used, and what speaks against it or must be known with it.

    Of `planned` attempts so many were answered, failed by infrastructure, or never run; None where no task details are
    stored. `score_answered` is the mean of the headline metric over the answered ones.
    """

    usable: bool
    reasons: list[str]
    planned: int
    answered: int | None
    infrastructure_failed: int | None
    never_run: int | None
    score_answered: float | None


class IssueCount(Struct, kw_only=True, forbid_unknown_fields=True):
    """How often an issue is in the results."""

    severity: str
    phase: str
    code: str
    count: int


class PlanCount(Struct, kw_only=True, forbid_unknown_fields=True):
    """Planned attempts with the same environment, recipes and network modes; None where a plan can't be read."""

    attempts: int
    environment: str | None = None
    applied_recipes: list[str] = []
    network_mode: str | None = None
    run_network_mode: str | None = None
    verifier_network_mode: str | None = None


class OpenResource(Struct, kw_only=True, forbid_unknown_fields=True):
    """An environment whose release is not recorded; all members but `file` are as its own file has them."""

    file: str
    provider: Any
    state: Any
    task_id: Any
    attempt: Any
    created_at: Any
    updated_at: Any
    error: Any


class ParamsFacts(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether params.json is there, and what is wrong with it."""

    present: bool
    problem: str | None


class SecretPlace(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a credential of some kind was found: a line of a file, or a record of the stream."""

    file: str
    line: int | None = None
    seq: int | None = None
    kind: str


class LogSummary(Struct, kw_only=True, forbid_unknown_fields=True):
    """Lines of run.log, messages by level, and the time of day of the last one."""

    lines: int
    levels: dict[str, int]
    last_time: str
    problem: str | None


class DiagnoseReport(Struct, kw_only=True, forbid_unknown_fields=True):
    """Why a run ended as it did: causes with the first one first, what was in flight, what is left, what to do.

    `closed` is what `close` saw of the run's writer when it gave the run its end.
    """

    schema: Literal["compass-es.diagnose.v1"] = "compass-es.diagnose.v1"
    run_id: str | None
    run_dir: str
    outcome: str
    certainty: Certainty
    causes: list[Cause]
    in_flight: list[Flight]
    status: str | None
    ended: bool
    error: str | None
    life: Life
    started_at: str | None
    last_event_at: str | None
    duration_seconds: float | None
    clock_stepped: bool
    closed: Closing | None
    longest_gap_seconds: float | None
    counts: dict[str, int]
    stream: StreamFacts
    identity: Identity
    retries: RetrySums
    results: ResultCounts
    reuse: ReuseEstimate
    score: ScoreFacts
    issues: list[IssueCount]
    plans: list[PlanCount]
    resources: list[OpenResource]
    params: ParamsFacts
    problems: list[str]
    secrets: list[SecretPlace]
    log: LogSummary
    next_steps: list[str]


def diagnose_report(document: Json) -> DiagnoseReport | Json:
    """Return the document of a diagnosis."""
    return typed(document, DiagnoseReport)
