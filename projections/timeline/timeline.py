"""Timeline: tasks, attempts, phases, retries and plans of one stream as rows, with starts, ends and how each ended.

A phase begins at a `phase_changed` and ends at the next event of the same task and attempt that shows that it is over:
another phase, `attempt_finished`, `attempt_retry` or a new `attempt_started`; or for all attempts of a task at its
`task_finished` or a new `task_started`; or at `run_finished`. What is in flight where another process goes on, or
where somebody else closed the run later, ended with the last record before that tells of something (`ended_by` is
`died`). One that nothing ended has no end: the run died in it, or is still in it. A repeated `phase_changed` of the
same phase (progress of a download) is one span with `updates`. Times are Unix seconds as the events have them;
durations are seconds, to the microsecond, and absent where the clock went back over them.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, field

from eventstore.errors import MalformedLineError
from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.format.records import Block, Head, Recorded, TypedHead, TypedPayload, cut_block
from eventstore.format.values import as_object
from projections import sessions
from projections.fold import Base, block_of, place_events

from .rows import (
    AttemptRow,
    JsonText,
    Moment,
    PhaseRow,
    PlanRow,
    RetryRow,
    TaskRow,
    as_float,
    as_int,
    clock_stepped,
    elapsed_seconds,
    safe_text,
)

__all__ = [
    "AttemptRow",
    "JsonText",
    "Moment",
    "Open",
    "OpenAttempt",
    "PhaseRow",
    "PlanRow",
    "RetryRow",
    "State",
    "TaskRow",
    "apply",
    "apply_block",
    "apply_part",
    "as_float",
    "as_int",
    "attempt_seconds",
    "clock_stepped",
    "elapsed_seconds",
    "error_text",
    "initial",
    "open_attempts",
    "open_phases",
    "payload_members",
    "payload_text",
    "read_facts",
    "render",
    "rows",
    "safe_text",
    "take_ended",
    "task_seconds",
    "worked_seconds",
]


class Open(Struct, gc=False):
    """An attempt that is running: its phase, and since when it has run without a retry."""

    phase: PhaseRow | None = None
    since: float | None = None


class OpenAttempt(Struct, gc=False):
    """An attempt that nothing has ended: where it is, and since when. `attempt` is None for a task between attempts.

    `stay` is its newest stay in a phase, None before the first one and after one that ended.
    """

    task_id: str
    attempt: int | None
    stay: PhaseRow | None
    since: float | None


class Pause(Struct, gc=False):
    """A task or an attempt whose process died, and another one may go on with it.

    `worked_seconds` is how long it was worked on before, `resumed_at` when it went on (None: it has not). `starts`
    counts those starts of a task that came to nothing.
    """

    worked_seconds: float | None = None
    resumed_at: float | None = None
    starts: int = 0


class State(Struct):
    """Rows so far. `phases` holds those that ended, `open` what is running, by task and attempt.

    `last_timestamp` and `last_seq` are those of the newest record that tells of something at its own time
    (`projections.sessions`). `pauses` has what another process had in flight, by task and attempt; a task's own entry
    has None for an attempt.

    `cut_off` are the attempts that the run's terminal event found open, None while there is no such event. Their times
    count up to `cut_off_at`: that event, or the last record before it that tells of something, where somebody else
    closed the run later.
    """

    tasks: dict[str, TaskRow] = {}
    attempts: dict[tuple[str, int | None], AttemptRow] = {}
    phases: list[PhaseRow] = []
    retries: list[RetryRow] = []
    plans: list[PlanRow] = []
    open: dict[str | None, dict[int | None, Open]] = {}
    last_timestamp: float | None = None
    last_seq: int | None = None
    cut_off: list[OpenAttempt] | None = None
    cut_off_at: float | None = None
    writers: sessions.State = field(default_factory=sessions.State)
    pauses: dict[tuple[str, int | None], Pause] = {}


Found: TypeAlias = tuple["TaskRow | None", "AttemptRow | None", Open]
Running: TypeAlias = dict[tuple[str | None, int | None], Found]
"""What a batch has looked up: by task and attempt, their rows and what is running."""
_facts_decoder = msgspec.json.Decoder(list[TypedHead])


def initial(base: Base) -> State:
    """Nothing has happened; stored files add nothing."""
    return State()


def apply(state: State, record: Recorded, /) -> State:
    """Fold one record."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /) -> State:
    """Fold a batch of records."""
    for part in sessions.parts(state.writers, block):
        apply_part(state, part)
    return state


def apply_part(state: State, part: sessions.Part) -> None:
    """Fold records in a row that `projections.sessions` has cut out of a batch."""
    block = part.block
    if part.border:
        if block.heads[0].event == "run_finished":
            _note_cut_off(state, state.last_timestamp)
        _end_work(state)
    running: Running = {}
    facts = read_facts(block)
    for seq, (fact, line) in enumerate(zip(facts, block.lines, strict=True), block.first_seq):
        event = fact.event
        if event == "phase_changed":
            _phase_changed(state, fact, seq, line, running)
        elif event in _APPLY:
            if event in _ENDING_TASK:
                for attempt in state.open.get(fact.task_id, ()):
                    running.pop((fact.task_id, attempt), None)
            elif event == "run_finished":
                running.clear()
                if part.bookkeeping or sessions.closing_words(line) is not None:
                    _close(state, part, seq - block.first_seq)
                else:
                    _note_cut_off(state, fact.timestamp)
            elif event == "partial_saved" and part.bookkeeping:
                _tell_saved(state, fact)
                continue
            _APPLY[event](state, fact, seq, line)
    _note_observed(state, part, facts)


def _note_observed(state: State, part: sessions.Part, facts: Sequence[TypedHead]) -> None:
    last = sessions.last_observation(part)
    if last is not None:
        state.last_timestamp, state.last_seq = facts[last].timestamp, part.block.first_seq + last


def _close(state: State, part: sessions.Part, index: int) -> None:
    """Somebody else gave a dead run its end: whatever is in flight ended with the last record that told of it."""
    before = sessions.Part(cut_block(part.block, 0, index), bookkeeping=part.bookkeeping)
    if before.block.heads:
        _note_observed(state, before, read_facts(before.block))
    _note_cut_off(state, state.last_timestamp)
    _end_work(state)


def _tell_saved(state: State, fact: TypedHead) -> None:
    """A result that an earlier process had saved: told later, at a time that says nothing of the task."""
    if fact.task_id is not None:
        task = state.tasks.get(fact.task_id)
        if task is None:
            task = state.tasks[fact.task_id] = TaskRow(fact.task_id, fact.category)
        task.partials_saved += 1


def read_facts(block: Block) -> Sequence[TypedHead]:
    """The facts in a batch of accepted lines; odd values become what a column can hold."""
    if block.typed:
        return block.heads
    try:
        return _facts_decoder.decode(codec.as_array(block.lines))
    except codec.REFUSALS:
        return [_read_fact(head, line) for head, line in zip(block.heads, block.lines, strict=True)]


_fact_decoder = msgspec.json.Decoder(TypedHead)


def _read_fact(head: Head, line: bytes) -> TypedHead:
    """The fact in one accepted line."""
    try:
        return _fact_decoder.decode(line)
    except codec.REFUSALS:
        members = codec.envelope_members(codec.decode_accepted(line, head))
    error = members["payload"].get("error")
    return TypedHead(
        run_id=head.run_id,
        event=safe_text(head.event) or "",
        timestamp=as_float(head.timestamp),
        task_id=safe_text(members["task_id"]),
        category=safe_text(members["category"]),
        attempt=as_int(members["attempt"]),
        phase=safe_text(members["phase"]),
        status=safe_text(members["status"]),
        payload=TypedPayload(Raw(codec.dump_compact(error, default=str))) if error else None,
    )


class _WithPayload(Struct, gc=False):
    payload: Raw = Raw(b"{}")


_payload_decoder = msgspec.json.Decoder(_WithPayload)


def payload_text(line: bytes) -> JsonText:
    """The payload of an accepted line as it stands there; where the strict reader doesn't get that far, written
    anew."""
    try:
        return bytes(_payload_decoder.decode(line.removeprefix(codec.BYTE_ORDER_MARK)).payload).decode("utf-8")
    except codec.REFUSALS:
        return codec.dump_compact(payload_members(line), default=str).decode("utf-8")


def payload_members(line: bytes) -> Json:
    """The payload of an accepted line."""
    try:
        payload = codec.parse_object(line).get("payload")
    except MalformedLineError:
        return {}
    return as_object(payload)


def error_text(line: bytes) -> str | None:
    """`payload.error` of an accepted line as text; None where it has none, or an empty one."""
    error = payload_members(line).get("error")
    return safe_text(error) if error else None


def _task(state: State, fact: TypedHead, seq: int) -> TaskRow | None:
    if fact.task_id is None:
        return None
    task = state.tasks.get(fact.task_id)
    if task is None:
        task = state.tasks[fact.task_id] = TaskRow(fact.task_id)
    if fact.category is not None:
        task.category = fact.category
    task.last_event_at = fact.timestamp
    task.last_seq = seq
    return task


def _attempt(state: State, fact: TypedHead) -> AttemptRow | None:
    if fact.task_id is None or fact.attempt is None:
        return None
    key = (fact.task_id, fact.attempt)
    row = state.attempts.get(key)
    if row is None:
        row = state.attempts[key] = AttemptRow(fact.task_id, fact.attempt, fact.category)
    return row


def _opened(state: State, fact: TypedHead) -> Open:
    attempts = state.open.get(fact.task_id)
    if attempts is None:
        attempts = state.open[fact.task_id] = {}
    found = attempts.get(fact.attempt)
    if found is None:
        found = attempts[fact.attempt] = Open()
        if state.pauses:
            _resume_attempt(state, fact)
    return found


# -- what another process goes on with


def _end_work(state: State) -> None:
    """End whatever is in flight with the last record that told of something: its process died."""
    now, seq = state.last_timestamp, state.last_seq
    for going_on in open_attempts(state):
        task_id, number = going_on.task_id, going_on.attempt
        row = state.attempts.get((task_id, number))
        if row is not None:
            row.seconds = worked_seconds(state, (task_id, number), row.started_at, now)
            row.finished_at, row.ended_by = now, "died"
            state.pauses[task_id, number] = Pause(row.seconds)
    for task in state.tasks.values():
        if _is_open(state, task):
            task.seconds = worked_seconds(state, (task.task_id, None), task.started_at, now)
            state.pauses[task.task_id, None] = Pause(task.seconds, starts=task.starts - task.finishes)
    for attempts in state.open.values():
        for opened in attempts.values():
            if opened.phase is not None:
                _cut_phase(state, opened.phase, now, seq)
    state.open.clear()


def _cut_phase(state: State, row: PhaseRow, now: float | None, seq: int | None) -> None:
    row.ended_at, row.ended_by, row.ended_seq = now, "died", seq
    row.seconds = elapsed_seconds(row.started_at, now)
    state.phases.append(row)


def _resume_attempt(state: State, fact: TypedHead) -> None:
    """A process goes on with an attempt, and its task, that another one had in flight."""
    key = (fact.task_id or "", fact.attempt)
    row, pause = state.attempts.get(key), state.pauses.get(key)
    if row is not None and row.ended_by == "died" and pause is not None:
        pause.resumed_at, row.ended_by, row.finished_at = fact.timestamp, None, None
    task = state.pauses.get((key[0], None))
    if task is not None and task.resumed_at is None:
        task.resumed_at = fact.timestamp
        task.starts -= 1  # it goes on without starting anew


def worked_seconds(
    state: State, key: tuple[str, int | None], started_at: float | None, end: float | None
) -> float | None:
    """Return the seconds from a start to an end, without the time in which no process worked on it."""
    pause = state.pauses.get(key) if state.pauses else None
    if pause is None:
        return elapsed_seconds(started_at, end)
    if pause.resumed_at is None:
        return pause.worked_seconds
    since = elapsed_seconds(pause.resumed_at, end)
    if since is None or pause.worked_seconds is None:
        return None
    return round(pause.worked_seconds + since, 6)


# -- the events


def _phase_changed(state: State, fact: TypedHead, seq: int, line: bytes, running: Running) -> None:
    """By far the most frequent event: what `_task` and `_end_phase` do stands here once more, without their calls."""
    now, key = fact.timestamp, (fact.task_id, fact.attempt)
    found = running.get(key)
    if found is None:
        found = running[key] = (_task(state, fact, seq), _attempt(state, fact), _opened(state, fact))
    task, attempt, opened = found
    name, row = fact.phase or "running", opened.phase
    if row is not None and row.phase == name:
        row.updates += 1
        row.status = row.status if fact.status is None else fact.status
    else:
        if row is not None:
            row.ended_at, row.ended_by, row.ended_seq = now, "phase_changed", seq
            row.seconds = elapsed_seconds(row.started_at, now)
            state.phases.append(row)
        row = opened.phase = PhaseRow(
            seq, fact.task_id, fact.attempt, fact.category, name, now, 1, None, None, None, None, fact.status
        )
        if attempt is not None:
            attempt.last_phase = name
            attempt.phases += 1
    if task is not None:
        task.last_phase = name
        if fact.category is not None:
            task.category = fact.category
        task.last_event_at, task.last_seq = now, seq
    payload = fact.payload
    if payload is not None and payload.error is not UNSET:
        row.error = error_text(line) or row.error


def _end_phase(state: State, opened: Open, fact: TypedHead, seq: int) -> None:
    row = opened.phase
    if row is not None:
        row.ended_at = fact.timestamp
        row.seconds = elapsed_seconds(row.started_at, fact.timestamp)
        row.ended_by = fact.event
        row.ended_seq = seq
        opened.phase = None
        state.phases.append(row)


def _end_all(state: State, task_id: str | None, fact: TypedHead, seq: int) -> None:
    """End whatever runs in a task: its phases, and its attempts that nothing else ended."""
    for number, opened in state.open.pop(task_id, {}).items():
        _end_phase(state, opened, fact, seq)
        row = None if task_id is None else state.attempts.get((task_id, number))
        if row is not None and row.ended_by is None:
            _end_attempt(state, row, fact)


def _end_attempt(state: State, row: AttemptRow, fact: TypedHead) -> None:
    row.finished_at = fact.timestamp
    row.ended_by = fact.event
    row.seconds = worked_seconds(state, (row.task_id, row.attempt), row.started_at, fact.timestamp)


def _task_started(state: State, fact: TypedHead, seq: int, line: bytes) -> None:
    task = _task(state, fact, seq)
    if task is None:
        return
    _end_all(state, task.task_id, fact, seq)
    pause = state.pauses.get((task.task_id, None)) if state.pauses else None
    if pause is not None and pause.resumed_at is None:
        pause.resumed_at = fact.timestamp
    task.starts += 1
    if task.started_at is None:
        task.started_at = fact.timestamp
    task.position = as_int(_position(line)[0])


def _task_finished(state: State, fact: TypedHead, seq: int, line: bytes) -> None:
    task = _task(state, fact, seq)
    if task is None:
        return
    _end_all(state, task.task_id, fact, seq)
    task.finishes += 1
    task.status = fact.status or "completed"
    task.severity = safe_text(_position(line)[1]) or None
    task.finished_at = fact.timestamp
    task.seconds = worked_seconds(state, (task.task_id, None), task.started_at, fact.timestamp)


def _attempt_started(state: State, fact: TypedHead, seq: int, line: bytes) -> None:
    task, row, opened = _task(state, fact, seq), _attempt(state, fact), _opened(state, fact)
    _end_phase(state, opened, fact, seq)
    opened.since = fact.timestamp
    if row is not None:
        row.starts += 1
        row.ended_by = None
        if row.started_at is None:
            row.started_at = fact.timestamp
    if task is not None:
        task.attempts += 1


def _attempt_finished(state: State, fact: TypedHead, seq: int, line: bytes) -> None:
    task, row, opened = _task(state, fact, seq), _attempt(state, fact), _opened(state, fact)
    _end_phase(state, opened, fact, seq)
    if row is not None:
        row.status = fact.status
        _end_attempt(state, row, fact)
    if task is not None:
        task.attempts_finished += 1


def _attempt_retry(state: State, fact: TypedHead, seq: int, line: bytes) -> None:
    task, row, opened = _task(state, fact, seq), _attempt(state, fact), _opened(state, fact)
    payload = payload_members(line)
    delay = payload.get("retry_delay_seconds")
    since = opened.since
    retry = RetryRow(seq, fact.task_id, fact.attempt, fact.category, fact.timestamp)
    retry.retry, retry.max_retries = as_int(payload.get("retry")), as_int(payload.get("max_retries"))
    for name in ("stage", "scope", "matched_pattern", "retry_detail"):
        setattr(retry, name, safe_text(payload.get(name)))
    retry.retry_delay_seconds = as_float(delay) if isinstance(delay, int | float) else None
    retry.phase = None if opened.phase is None else opened.phase.phase
    retry.discarded_seconds = elapsed_seconds(since, fact.timestamp)
    state.retries.append(retry)
    _end_phase(state, opened, fact, seq)
    opened.since = fact.timestamp
    if row is not None:
        row.retries += 1
    if task is not None:
        task.retries += 1


def _plan_resolved(state: State, fact: TypedHead, seq: int, line: bytes) -> None:
    _task(state, fact, seq)
    plan = PlanRow(seq, fact.task_id, fact.attempt, fact.category, fact.timestamp, payload_text(line))
    state.plans.append(plan)


def _partial_saved(state: State, fact: TypedHead, seq: int, line: bytes) -> None:
    task = _task(state, fact, seq)
    if task is not None:
        task.partials_saved += 1


def _run_finished(state: State, fact: TypedHead, seq: int, line: bytes) -> None:
    for task_id in list(state.open):
        _end_all(state, task_id, fact, seq)


def _run_started(state: State, fact: TypedHead, seq: int, line: bytes) -> None:
    """A run that was opened again after its end goes on."""
    state.cut_off = state.cut_off_at = None


def _note_cut_off(state: State, at: float | None) -> None:
    """Keep what a terminal event cuts off; a second one cuts off nothing more."""
    if state.cut_off is None:
        state.cut_off, state.cut_off_at = open_attempts(state), at


_APPLY = {
    "task_started": _task_started,
    "task_finished": _task_finished,
    "attempt_started": _attempt_started,
    "attempt_finished": _attempt_finished,
    "attempt_retry": _attempt_retry,
    "execution_plan_resolved": _plan_resolved,
    "partial_saved": _partial_saved,
    "run_finished": _run_finished,
    "run_started": _run_started,
}


EVENTS = place_events(
    takes={"phase_changed", *_APPLY},
    passes_over={
        "tasks_loaded",
        "reuse_loaded",
        "summary_started",
        "metric_artifacts_written",
        "stream_repaired",
        "stream_scrubbed",
        "records_lost",
    },
)
_ENDING_TASK = frozenset({"task_started", "task_finished"})


class _Position(Struct, gc=False):
    index: int | None = None
    severity: str | None = None


class _WithPosition(Struct, gc=False):
    payload: _Position | None = None


_position_decoder = msgspec.json.Decoder(_WithPosition)


def _position(line: bytes) -> tuple[Any, Any]:
    """`index` and `severity` of the payload of a task's start or end."""
    try:
        found = _position_decoder.decode(line).payload
        return (None, None) if found is None else (found.index, found.severity)
    except codec.REFUSALS:
        payload = payload_members(line)
        return payload.get("index"), payload.get("severity")


# -- what is known at the end


def take_ended(state: State) -> list[Struct]:
    """Rows that will not change any more, taken out of the state: so that a long stream fits into memory."""
    ended: list[Struct] = [*state.phases, *state.retries, *state.plans]
    state.phases, state.retries, state.plans = [], [], []
    return ended


def rows(state: State) -> list[Struct]:
    """All rows; what nothing ended gets its seconds up to the stream's last record, and keeps no end."""
    last = state.last_timestamp
    if last is not None:
        for attempt in state.attempts.values():
            if attempt.ended_by is None and attempt.started_at is not None:
                key = (attempt.task_id, attempt.attempt)
                attempt.seconds = worked_seconds(state, key, attempt.started_at, last)
        for task in state.tasks.values():
            if task.finishes == 0 and task.started_at is not None:
                task.seconds = worked_seconds(state, (task.task_id, None), task.started_at, last)
    return [*state.tasks.values(), *state.attempts.values(), *open_phases(state), *take_ended(state)]


def task_seconds(state: State, task: TaskRow) -> float | None:
    """Return how long a task took; one that has not finished counts up to the last record before the run's end."""
    if task.finishes:
        return task.seconds
    return worked_seconds(state, (task.task_id, None), task.started_at, _last_moment(state))


def attempt_seconds(state: State, attempt: AttemptRow) -> float | None:
    """Return how long an attempt took; one that has not ended counts as a task does."""
    ended = attempt.ended_by is not None and attempt.ended_by != "run_finished"
    if ended:
        return attempt.seconds
    return worked_seconds(state, (attempt.task_id, attempt.attempt), attempt.started_at, _last_moment(state))


def _last_moment(state: State) -> float | None:
    return state.last_timestamp if state.cut_off is None else state.cut_off_at


def open_attempts(state: State) -> list[OpenAttempt]:
    """Return the attempts that have begun and not ended; a task between its attempts is one without number."""
    found: list[OpenAttempt] = []
    for task_id, attempts in state.open.items():
        if task_id is None:
            continue
        for number, opened in attempts.items():
            row = state.attempts.get((task_id, number))
            if row is not None and row.ended_by is None:
                found.append(OpenAttempt(task_id, number, opened.phase, opened.since))
    counted = {attempt.task_id for attempt in found}
    for task in state.tasks.values():
        if _is_open(state, task) and task.task_id not in counted:
            opened = state.open.get(task.task_id, {}).get(None, Open())
            found.append(OpenAttempt(task.task_id, None, opened.phase, None))
    return found


def _is_open(state: State, task: TaskRow) -> bool:
    pause = state.pauses.get((task.task_id, None)) if state.pauses else None
    return task.starts - (0 if pause is None else pause.starts) > task.finishes


def open_phases(state: State) -> list[PhaseRow]:
    """Phases that nothing has ended yet, with their seconds up to the stream's last record."""
    found = [opened.phase for attempts in state.open.values() for opened in attempts.values() if opened.phase]
    for row in found:
        row.seconds = elapsed_seconds(row.started_at, state.last_timestamp)
    return found


def render(state: State, /) -> bytes:
    """All rows as JSON, by kind."""
    by_kind: Json = {"tasks": [], "attempts": [], "phases": [], "retries": [], "plans": []}
    names = dict(zip((TaskRow, AttemptRow, PhaseRow, RetryRow, PlanRow), by_kind, strict=True))
    for row in rows(state):
        by_kind[names[type(row)]].append(msgspec.to_builtins(row))
    return codec.dump_pretty(by_kind, sort_keys=False)
