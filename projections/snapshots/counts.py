"""Task counts, status and active tasks: the folding rules of AgentCompass's tracker, counter by counter.

Mirrors what AgentCompass 1.0.1 does with each event, odd cases included: a late `phase_changed` revives a task, a
repeated `task_finished` counts twice (specification, "progress.json"; the observed fold rules). `verify` is where such
things are reported.

Where another process goes on with a run of ours (`projections.sessions`), tasks in flight go back to pending: the
tracker of AgentCompass, which lives in one process, has no such case.

A task's entry is a function of the last line that set it, so the state keeps that line and decodes it when rendering:
of a million events only those of the tasks still active are ever decoded whole.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct, field

from eventstore.errors import MalformedLineError
from eventstore.format import codec
from eventstore.format.events import ADMINISTRATIVE_EVENTS, Json
from eventstore.format.records import Block, Head, Recorded
from eventstore.format.values import as_object
from projections import sessions
from projections.fold import Base, block_of, place_events


class State(Struct):
    """Counters named as in progress.json.

    `active` maps a task id to the line that last set its entry. `fresh` holds tasks whose entry was set by
    `task_started` since the phase counts were last recomputed, with the line they had then (None: they were not
    active): AgentCompass doesn't recompute the counts at `task_started`.

    `lowest_…` and `gone` serve `parallel`: how low the two counters that never go below zero have been, and
    which tasks have left.

    `returned` are tasks that went back to pending when another process took over. `first_timestamp` and
    `last_timestamp` are the tracker's clock; `first_observed_at` and `last_observed_at` leave bookkeeping aside.
    """

    status: str = "created"
    total_tasks: int = 0
    reused_tasks: int = 0
    pending_tasks: int = 0
    running_tasks: int = 0
    finished_tasks: int = 0
    completed_tasks: int = 0
    failed_tasks: int = 0
    error_tasks: int = 0
    warning_tasks: int = 0
    skipped_tasks: int = 0
    attempts_started: int = 0
    attempts_finished: int = 0
    partials_saved: int = 0
    active: dict[str, bytes] = {}
    fresh: dict[str, bytes | None] = {}
    lowest_pending: int = 0
    lowest_running: int = 0
    gone: set[str] = set()
    events: int = 0
    first_timestamp: float | None = None
    last_timestamp: float | None = None
    writers: sessions.State = field(default_factory=sessions.State)
    returned: dict[str, None] = {}
    first_observed_at: float | None = None
    last_observed_at: float | None = None

    @property
    def first_moment(self) -> float | None:
        """The time of the first record that tells of something, else the tracker's first."""
        return self.first_timestamp if self.first_observed_at is None else self.first_observed_at

    @property
    def last_moment(self) -> float | None:
        """The time of the last record that tells of something, else the tracker's last."""
        return self.last_timestamp if self.last_observed_at is None else self.last_observed_at


COUNTERS = (
    "total_tasks",
    "reused_tasks",
    "pending_tasks",
    "running_tasks",
    "finished_tasks",
    "completed_tasks",
    "failed_tasks",
    "error_tasks",
    "warning_tasks",
    "skipped_tasks",
    "attempts_started",
    "attempts_finished",
    "partials_saved",
)
"""The counters of progress.json, in its order."""


def initial(base: Base) -> State:
    """Return all counts at zero, status `created`; stored files add nothing."""
    return State()


def apply(state: State, record: Recorded, /) -> State:
    """Count one record."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /) -> State:
    """Count a batch of records."""
    for part in sessions.parts(state.writers, block):
        if part.border:
            _return_tasks(state)
        _apply_part(state, part)
    return state


def _return_tasks(state: State) -> None:
    """Another process goes on: what the one before had in flight is pending again."""
    state.pending_tasks += state.running_tasks
    state.running_tasks = 0
    state.returned.update(dict.fromkeys(state.active))
    state.active.clear()
    state.fresh.clear()


def _take_up(state: State, task_id: str) -> None:
    """A process goes on with a task that another one had in flight, without starting it anew."""
    del state.returned[task_id]
    state.pending_tasks = max(0, state.pending_tasks - 1)
    state.running_tasks += 1


def _apply_part(state: State, part: sessions.Part) -> None:
    """Count records in a row: one loop over the events that are many, a table for the rest."""
    block = part.block
    active, fresh, returned = state.active, state.fresh, state.returned
    started = finished = saved = 0
    for head, line in zip(block.heads, block.lines, strict=True):
        name = head.event
        if name == "phase_changed":
            if fresh:
                fresh.clear()
            if task_id := head.task_id:
                if returned and task_id in returned:
                    _take_up(state, task_id)
                active[task_id] = line
        elif name == "attempt_started":
            started += 1
        elif name == "attempt_finished":
            finished += 1
        elif name == "partial_saved":
            saved += 1
        elif name in _RARE:
            _RARE[name](state, head, line)
    state.attempts_started += started
    state.attempts_finished += finished
    state.partials_saved += saved
    _note_time(state, block.heads)
    _note_observed(state, part)


def _note_observed(state: State, part: sessions.Part) -> None:
    """The times of the first and the last record that tell of something at their own time."""
    if (last := sessions.last_observation(part)) is not None:
        state.last_observed_at = part.block.heads[last].timestamp
        if state.first_observed_at is None:
            first = sessions.first_observation(part)
            state.first_observed_at = None if first is None else first.timestamp


def _note_time(state: State, heads: list[Any]) -> None:
    """The clock of progress.json; administrative events of ours don't move it."""
    state.events += len(heads)
    if state.first_timestamp is None:
        state.first_timestamp = next((h.timestamp for h in heads if h.event not in ADMINISTRATIVE_EVENTS), None)
    last = next((h.timestamp for h in reversed(heads) if h.event not in ADMINISTRATIVE_EVENTS), None)
    if last is not None:
        state.last_timestamp = last


# -- the rest of the events, one function each


def _run_started(state: State, head: Head, line: bytes) -> None:
    state.status = "running"


def _tasks_loaded(state: State, head: Head, line: bytes) -> None:
    state.total_tasks = state.pending_tasks = _count(_payload(line), "total_tasks")


def _reuse_loaded(state: State, head: Head, line: bytes) -> None:
    payload = _payload(line)
    severities = as_object(payload.get("reused_severity_counts"))
    reused = _count(payload, "reused_tasks")
    state.reused_tasks = state.finished_tasks = state.completed_tasks = reused
    state.pending_tasks = _count(payload, "tasks_to_run")
    state.error_tasks = _count(severities, "error")
    state.warning_tasks = _count(severities, "warning")


def _task_started(state: State, head: Head, line: bytes) -> None:
    state.pending_tasks = max(0, state.pending_tasks - 1)
    state.lowest_pending = min(state.lowest_pending, state.pending_tasks)
    state.running_tasks += 1
    if head.task_id:
        state.returned.pop(head.task_id, None)
        state.fresh.setdefault(head.task_id, state.active.get(head.task_id))
        state.active[head.task_id] = line


class _Severity(Struct, gc=False):
    severity: str | None = None


class _Outcome(Struct, gc=False):
    status: str | None = None
    payload: _Severity | None = None


_outcome_decoder = msgspec.json.Decoder(_Outcome)


def _outcome(line: bytes) -> tuple[str, str]:
    """Return status and highest severity of a finished task; values of another type as AgentCompass would read them."""
    try:
        outcome = _outcome_decoder.decode(line)
        severity = outcome.payload.severity if outcome.payload else None
        return (outcome.status or "completed").lower(), severity or ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        members = _members(line)
        payload = members.get("payload") or {}
        return str(members.get("status") or "completed").lower(), str(payload.get("severity") or "")


def _task_finished(state: State, head: Head, line: bytes) -> None:
    status, severity = _outcome(line)
    if head.task_id is not None and head.task_id in state.returned:
        _take_up(state, head.task_id)
    state.running_tasks = max(0, state.running_tasks - 1)
    state.lowest_running = min(state.lowest_running, state.running_tasks)
    state.finished_tasks += 1
    if status == "skipped":
        state.skipped_tasks += 1
    elif status == "failed":
        state.failed_tasks += 1
    else:
        state.completed_tasks += 1
    if severity == "error":
        state.error_tasks += 1
    elif severity == "warning":
        state.warning_tasks += 1
    state.fresh.clear()
    if head.task_id:
        state.active.pop(head.task_id, None)
        state.gone.add(head.task_id)


def _summary_started(state: State, head: Head, line: bytes) -> None:
    state.status = "summarizing"


def _run_finished(state: State, head: Head, line: bytes) -> None:
    state.status = str(_members(line).get("status") or "completed")
    state.running_tasks = 0
    state.pending_tasks = max(0, state.total_tasks - state.finished_tasks)
    state.active.clear()
    state.fresh.clear()
    state.returned.clear()


_RARE: dict[str, Callable[[State, Head, bytes], None]] = {
    "run_started": _run_started,
    "tasks_loaded": _tasks_loaded,
    "reuse_loaded": _reuse_loaded,
    "task_started": _task_started,
    "task_finished": _task_finished,
    "summary_started": _summary_started,
    "run_finished": _run_finished,
}
EVENTS = place_events(
    takes={"phase_changed", "attempt_started", "attempt_finished", "partial_saved", *_RARE},
    passes_over={
        "execution_plan_resolved",
        "attempt_retry",
        "metric_artifacts_written",
        "stream_repaired",
        "stream_scrubbed",
        "records_lost",
    },
)


def _members(line: bytes) -> Json:
    try:
        return codec.parse_object(line)
    except MalformedLineError:
        return {}


def _payload(line: bytes) -> Json:
    return as_object(_members(line).get("payload"))


def _count(members: Json, name: str) -> int:
    try:
        return int(members.get(name) or 0)
    except (TypeError, ValueError, OverflowError):
        return 0


# -- what rendering needs


def active_tasks(state: State) -> dict[str, Json]:
    """The `active_tasks` object of progress.json: category, phase, attempt, updated_at; details once a phase came."""
    return {task_id: _entry(line) for task_id, line in state.active.items()}


def _entry(line: bytes) -> Json:
    members = _members(line)
    entry: Json = {
        "category": members.get("category"),
        "phase": members.get("phase"),
        "attempt": members.get("attempt"),
        "updated_at": members.get("timestamp"),
    }
    if members.get("event") == "task_started":
        entry["phase"] = entry["phase"] or "running"
    else:
        entry["details"] = members.get("payload") or {}
    return entry


def phase_counts(state: State) -> dict[str, int]:
    """Return the `current_phase_counts` object: active tasks by phase, as of the last event that recomputes it."""
    counts: dict[str, int] = {}
    for task_id, line in state.active.items():
        counted = state.fresh.get(task_id, line)
        if counted is not None:
            phase = str(_members(counted).get("phase") or "running")
            counts[phase] = counts.get(phase, 0) + 1
    return counts


def snapshot(state: State) -> Json:
    """Status, counters, phase counts and active tasks, in the order of progress.json."""
    members: Json = {"status": state.status}
    members.update((name, getattr(state, name)) for name in COUNTERS)
    members["current_phase_counts"] = phase_counts(state)
    members["active_tasks"] = active_tasks(state)
    return members


def render(state: State, /) -> bytes:
    """Return the counts as JSON, in the layout of progress.json."""
    return codec.dump_pretty(snapshot(state), sort_keys=False)
