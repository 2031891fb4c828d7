"""Landmarks of a stream: what a diagnosis asks for beyond the timeline. Clock steps, starts, the end, what was lost.

`lines` are not known here; a record is named by its seq.
"""

from typing import Any

from msgspec import Struct, field, to_builtins

from eventstore.format import codec
from eventstore.format.events import ADMINISTRATIVE_EVENTS, Json
from eventstore.format.records import Block, Head, Recorded
from eventstore.format.values import as_object, as_text
from projections import sessions
from projections.fold import Base, block_of, place_events

CLOCK_STEP_SECONDS = 1.0
"""Threads may emit some milliseconds out of order; a step back of more than this is the clock's."""
MAX_STEPS = 100


class Step(Struct, frozen=True):
    """The clock went back: `seconds` (negative) between the record before and `seq`."""

    seq: int
    seconds: float


class Place(Struct, frozen=True):
    """A record, with the payload members that matter."""

    seq: int
    timestamp: float
    payload: Json = {}
    status: str | None = None
    task_id: str | None = None
    request_key: str | None = None


class State(Struct):
    """`ended` is the last terminal event, `starts` the first `run_started`s, `severities` are those of finished tasks.

    Times and gaps are those of records that tell of something at their own time (`projections.sessions`); the time
    between a death and the work of another process is no gap.
    """

    events: int = 0
    first_timestamp: float | None = None
    last_timestamp: float | None = None
    longest_gap_seconds: float = 0.0
    steps: list[Step] = []
    step_count: int = 0
    starts: list[Place] = []
    start_count: int = 0
    ended: Place | None = None
    loaded: Place | None = None
    reused: Place | None = None
    summary: Place | None = None
    lost: list[Place] = []
    severities: dict[str, tuple[str, int]] = {}
    attempts: int = 0
    writers: sessions.State = field(default_factory=sessions.State)

    @property
    def closed(self) -> sessions.Closing | None:
        """What `close` saw when it gave a dead run its end; None where nobody did."""
        return None if self.ended is None else sessions.closing_of(self.ended.payload)


def initial(base: Base) -> State:
    """Nothing has happened; stored files add nothing."""
    return State()


def apply(state: State, record: Recorded, /) -> State:
    """Fold one record."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /) -> State:
    """Fold a batch of records."""
    for part in sessions.parts(state.writers, block):
        _apply_part(state, part)
    return state


def _apply_part(state: State, part: sessions.Part) -> None:
    block, before = part.block, state.last_timestamp
    longest = state.longest_gap_seconds
    for index, head in enumerate(block.heads):
        if head.event in _NOTED:
            _note(state, head, block.lines[index], block.first_seq + index)
        if part.bookkeeping or (head.event in _LOOKED_AT and not sessions.is_observation(head, block.lines[index])):
            continue
        now = head.timestamp
        if before is not None and now != before:
            if now - before < -CLOCK_STEP_SECONDS:
                _note_step(state, block.first_seq + index, now - before)
            elif now - before > state.longest_gap_seconds:
                state.longest_gap_seconds = now - before
        before = now
        if state.first_timestamp is None:
            state.first_timestamp = now
    if part.border:
        state.longest_gap_seconds = longest
    state.events += len(block.heads)
    state.last_timestamp = before


def render(state: State, /) -> bytes:
    """Return the state as JSON."""
    return codec.dump_pretty(to_builtins(state), sort_keys=False)


_NOTED = frozenset(
    {
        "run_started",
        "tasks_loaded",
        "reuse_loaded",
        "summary_started",
        "run_finished",
        "records_lost",
        "task_finished",
        "attempt_started",
    }
)
EVENTS = place_events(
    takes=_NOTED,
    passes_over={
        "task_started",
        "phase_changed",
        "execution_plan_resolved",
        "attempt_retry",
        "attempt_finished",
        "partial_saved",
        "metric_artifacts_written",
        "stream_repaired",
        "stream_scrubbed",
    },
)
_LOOKED_AT = frozenset({"run_finished", *ADMINISTRATIVE_EVENTS})
"""Events that may be bookkeeping."""


def _note_step(state: State, seq: int, seconds: float) -> None:
    state.step_count += 1
    if len(state.steps) < MAX_STEPS:
        state.steps.append(Step(seq, seconds))


def _note(state: State, head: Head, line: bytes, seq: int) -> None:
    if head.event == "attempt_started":
        state.attempts += 1
        return
    place = _place(head, line, seq)
    match head.event:
        case "task_finished":
            severity = place.payload.get("severity")
            word = severity if isinstance(severity, str) and severity else "fatal" if place.status == "failed" else ""
            state.severities[place.task_id or ""] = (word, seq)
        case "run_started":
            state.start_count += 1
            state.ended = None  # a run that was opened again goes on
            if len(state.starts) < MAX_STEPS:
                state.starts.append(place)
        case "tasks_loaded":
            state.loaded = place
        case "reuse_loaded":
            state.reused = place
        case "summary_started":
            state.summary = place
        case "run_finished":
            state.ended = place
        case _:
            state.lost.append(place)


def _place(head: Head, line: bytes, seq: int) -> Place:
    members: dict[str, Any] = codec.envelope_members(codec.decode_accepted(line, head))
    return Place(
        seq=seq,
        timestamp=head.timestamp,
        payload=as_object(members["payload"]),
        status=as_text(members["status"]),
        task_id=as_text(members["task_id"]),
        request_key=as_text(members["request_key"]),
    )
