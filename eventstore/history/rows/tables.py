"""The tables of a history: one struct a row, and the column types that follow from its fields.

Rows of tasks, attempts, phases and retries are those of `timeline`; here are the rest. A table `runs`,
`events`, … has the struct's fields as its columns, after those of the run.
"""

import types
import typing
from pathlib import Path
from typing import Any, get_type_hints

from msgspec import UNSET, Raw, Struct, UnsetType, field

from eventstore.format.records import WholeNumber
from projections.timeline.rows import AttemptRow, JsonText, Moment, PhaseRow, RetryRow, TaskRow

SCHEMA_VERSION = 8
"""Part of the catalog's file name: a catalog of another version is simply not this one."""

AGENTCOMPASS, COMPASS_ES = "agentcompass", "compass_es"
"""Whose records a run directory holds."""


class RunRow(Struct, gc=False, kw_only=True):
    """One run directory. Counters are those of the folded progress.json, None beyond 64 bits.

    `seconds` runs to its end or, where it died, to the last event; `clock_stepped` tells that the clock went back over
    it. `closed` is what `close` noted in the terminal event of a run that died. `source` says whose recorder began the
    stream.
    """

    path: str
    run_key: str = ""
    run_id: str | None = None
    benchmark: str | None = None
    harness: str | None = None
    environment: str | None = None
    model: str | None = None
    status: str | None = None
    finished: bool = False
    total_tasks: int | None = 0
    reused_tasks: int | None = 0
    pending_tasks: int | None = 0
    running_tasks: int | None = 0
    finished_tasks: int | None = 0
    completed_tasks: int | None = 0
    failed_tasks: int | None = 0
    error_tasks: int | None = 0
    warning_tasks: int | None = 0
    skipped_tasks: int | None = 0
    attempts_started: int | None = 0
    attempts_finished: int | None = 0
    partials_saved: int | None = 0
    retries: int = 0
    started_at: Moment | None = None
    finished_at: Moment | None = None
    last_event_at: Moment | None = None
    seconds: float | None = None
    clock_stepped: bool = False
    closed: JsonText | None = None
    longest_gap_seconds: float | None = None
    longest_gap_seq: int | None = None
    error: str | None = None
    score: float | None = None
    answered: int | None = None
    infrastructure_failed: int | None = None
    never_run: int | None = None
    score_answered: float | None = None
    attempts_k: int | None = None
    attempts_strategy: str | None = None
    reused_from_run_id: str | None = None
    reused_from_path: str | None = None
    orchestration_id: str | None = None
    request_key: str | None = None
    request_name: str | None = None
    request_index: int | None = None
    schema_version: str | None = None
    stored_status: str | None = None
    analysis_only: bool = False
    sealed: bool = False
    events: int = 0
    damaged: int = 0
    torn_bytes: int = 0
    bytes: int = 0
    request: JsonText | None = None
    metric_artifacts: JsonText | None = None
    source: str = AGENTCOMPASS
    problem: str | None = None


class EventRow(Struct, gc=False, forbid_unknown_fields=True):
    """One accepted record: the thirteen members of its line, decoded by the names they have there, then its place.

    A line that decodes into it strictly is one that DuckDB reads with the same result. Fields with `~` in their name
    are set after decoding, whatever a line says. `extra` holds members that the specification doesn't name.
    """

    run_id: str
    event: str
    timestamp: float
    task_id: str | None = None
    category: str | None = None
    attempt: WholeNumber | None = None
    phase: str | None = None
    status: str | None = None
    payload: Raw = Raw(b"null")
    orchestration_id: str | None = None
    request_key: str | None = None
    request_name: str | None = None
    request_index: WholeNumber | None = None
    log: Raw | UnsetType = UNSET
    run_no: int = field(default=0, name="~run_no")
    seq: int = field(default=0, name="~seq")
    line: int = field(default=0, name="~line")
    offset: int = field(default=0, name="~offset")
    extra: str | None = field(default=None, name="~extra")


class PlanTableRow(Struct, gc=False, kw_only=True):
    """A resolved plan; `source` is `stream`, or `run_info` for one that only the stored file has (a reused task's).

    What it holds is in `plan_texts` under `plan_no`: a run has thousands of plans, and few that differ.
    """

    task_id: str | None
    attempt: int | None = None
    category: str | None = None
    source: str = "stream"
    seq: int | None = None
    resolved_at: Moment | None = None
    plan_no: int = 0


class PlanTextRow(Struct, gc=False, kw_only=True):
    """What equal plans of one run hold. `plan_no` is the `seq` of the first of them, below 0 for stored ones."""

    plan_no: int
    environment: str | None = None
    evaluation_environment: str | None = None
    evaluation_environment_mode: str | None = None
    network_policy: JsonText | None = None
    run_network_policy: JsonText | None = None
    verifier_network_policy: JsonText | None = None
    applied_recipes: JsonText | None = None
    run_timeout_seconds: float | None = None
    evaluation_timeout_seconds: float | None = None
    plan: JsonText | None = None


class ResultRow(Struct, gc=False, kw_only=True):
    """One attempt's result.json, without its trajectory."""

    task_id: str
    attempt: int
    category: str | None = None
    state: str | None = None
    status: str | None = None
    severity: str | None = None
    outcome: str | None = None
    issues: int = 0
    retries: int | None = None
    final_answer: JsonText | None = None
    ground_truth: JsonText | None = None
    metrics: JsonText | None = None
    meta: JsonText | None = None
    analysis_result: JsonText | None = None
    result_bytes: int = 0
    file: str = ""


class IssueRow(Struct, gc=False, kw_only=True):
    """One issue of a result, numbered from 0 within it."""

    task_id: str
    attempt: int
    category: str | None = None
    number: int = 0
    severity: str | None = None
    phase: str | None = None
    code: str | None = None
    message: str | None = None


class MetricRow(Struct, gc=False, kw_only=True):
    """One number of a result (`scope` attempt) or of metrics.json (`run`, `category`).

    `value` is text here and a number in the view, because JSON has no form for NaN; `raw` is what stands in the file.
    """

    scope: str
    metric: str
    task_id: str | None = None
    attempt: int | None = None
    category: str | None = None
    reducer: str | None = None
    k: int | None = None
    role: str | None = None
    value: str | None = None
    total: int | None = None
    evaluated: int | None = None
    errors: int | None = None
    raw: JsonText | None = None


class ParamRow(Struct, gc=False, kw_only=True):
    """One leaf of the request in run_info.json (or of params.json); `name` is its path with dots."""

    name: str
    source: str
    value: str | None = None
    raw: JsonText | None = None


class LogRow(Struct, gc=False, kw_only=True):
    """One message of run.log with the lines that continue it; `logged_at` has its date from the run's start."""

    line: int
    time: str | None = None
    logged_at: Moment | None = None
    level: str | None = None
    logger: str | None = None
    task_id: str | None = None
    message: str = ""


class ArtifactRow(Struct, gc=False, kw_only=True):
    """One file below an attempt's artifacts/ or retries/ folder; `kind` names the folder."""

    task_id: str
    attempt: int
    kind: str
    file: str
    bytes: int = 0
    modified_at: Moment | None = None


class DamageRow(Struct, gc=False, kw_only=True):
    """One finding of the scan, or a file that could not be read. `line` counts from 1, `offset` from 0."""

    file: str
    line: int | None = None
    offset: int | None = None
    length: int | None = None
    code: str = ""
    severity: str = ""
    message: str = ""
    seq: int | None = None


TABLES: dict[str, type[Struct]] = {
    "runs": RunRow,
    "tasks": TaskRow,
    "attempts": AttemptRow,
    "phases": PhaseRow,
    "retries": RetryRow,
    "plans": PlanTableRow,
    "plan_texts": PlanTextRow,
    "results": ResultRow,
    "issues": IssueRow,
    "metrics": MetricRow,
    "params": ParamRow,
    "logs": LogRow,
    "artifacts": ArtifactRow,
    "damage": DamageRow,
}
"""Tables whose rows are written from structs; `events` comes on top."""

_EVENT_COLUMNS = {
    "seq": "BIGINT",
    "line": "BIGINT",
    "offset": "BIGINT",
    "event": "VARCHAR",
    "timestamp": "TIMESTAMP",
    "task_id": "VARCHAR",
    "category": "VARCHAR",
    "attempt": "BIGINT",
    "phase": "VARCHAR",
    "status": "VARCHAR",
    "payload": "JSON",
    "orchestration_id": "VARCHAR",
    "request_key": "VARCHAR",
    "request_name": "VARCHAR",
    "request_index": "BIGINT",
    "payload_text": "VARCHAR",
    "extra": "JSON",
    "own_context": "BOOLEAN",
    "stay_seconds": "DOUBLE",
    "stay_records": "INTEGER",
    "stay_ended_by": "UTINYINT",
}
"""`run_id` is not among them: a stream's records have all the same. Where not `own_context`, the four columns of the
request are NULL, and those of the run count. The last three are of a record that begins a stay in a phase which ended
in the same batch: it has no row in `phases`."""

_SQL_TYPES: list[tuple[Any, str]] = [
    (str, "VARCHAR"),
    (int, "BIGINT"),
    (float, "DOUBLE"),
    (bool, "BOOLEAN"),
    (Moment, "TIMESTAMP"),
    (JsonText, "JSON"),
]


KEY_COLUMNS = {"run_no": "INTEGER"}
"""First in every table: the catalog's own number of a run. Unlike a key it lets DuckDB pass over blocks, and is small;
the views get the key from `runs`."""


def columns_of(table: str) -> dict[str, str]:
    """Return column name → DuckDB type of a table, that of the run first."""
    if table == "events":
        return KEY_COLUMNS | _EVENT_COLUMNS
    hints = get_type_hints(TABLES[table], include_extras=True)
    return KEY_COLUMNS | {name: _sql_type(_inner(hint)) for name, hint in hints.items()}


def _sql_type(hint: Any) -> str:
    return next(sql for kind, sql in _SQL_TYPES if kind == hint)


def _inner(hint: Any) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return hint


ALL_TABLES = (*TABLES, "events")
VIEWS = tuple(table for table in ALL_TABLES if table != "plan_texts")
"""Views that anybody may ask; each has most of its columns from the table of its name."""


class PlacedRun(Struct, frozen=True):
    """A run directory with its number and key in a history."""

    no: int
    key: str
    path: Path
