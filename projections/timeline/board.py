"""The board of a run that is being watched: who is in which phase since when, how long phases take, and when it ends.

It folds the timeline and lets go of what is over, because a board must not grow with the stream: of that it keeps
counts, totals and the last few hundred lengths of each phase.
"""

from statistics import median

from msgspec import UNSET, Struct, field

from eventstore.format import codec
from eventstore.format.records import Block, Recorded, TypedHead
from projections import sessions
from projections.fold import Base, block_of, place_events

from . import timeline
from .in_flight import CUT_OFF, Flight, PhaseTimes, in_flight, is_stuck, running_stays
from .timeline import PhaseRow, RetryRow, error_text, payload_members, read_facts, safe_text

RING = 256
MAX_PROBLEMS = 20
MIN_FINISHES = 5
_CHUNKS = 4


class Stays(Struct):
    """Finished stays in one phase; `recent` holds the last lengths in seconds."""

    count: int = 0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0
    recent: list[float] = []


class Problem(Struct, frozen=True, gc=False):
    """Something that went wrong lately."""

    timestamp: float
    task_id: str | None
    text: str


class Finishes(Struct, frozen=True):
    """When the run may end, in seconds from now: a range, and the middle of it. None where nothing can be said."""

    remaining_seconds: float
    low_seconds: float
    high_seconds: float


class State(Struct):
    """`rows` holds what has not ended, `finished_at` the times of the last finished tasks.

    `last_timestamp` is that of the last record that tells of something at its own time.
    """

    rows: timeline.State = field(default_factory=timeline.State)
    stays: dict[str, Stays] = {}
    finished_at: list[float] = []
    retries: int = 0
    problems: list[Problem] = []
    last_timestamp: float | None = None
    longest_gap_seconds: float = 0.0
    ended: bool = False


def initial(base: Base) -> State:
    """Nothing has happened; stored files add nothing."""
    return State(timeline.initial(base))


def apply(state: State, record: Recorded, /) -> State:
    """Fold one record."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /) -> State:
    """Fold a batch of records."""
    for part in sessions.parts(state.rows.writers, block):
        timeline.apply_part(state.rows, part)
        for row in timeline.take_ended(state.rows):
            if isinstance(row, PhaseRow):
                _end_stay(state, row)
            elif isinstance(row, RetryRow):
                state.retries += 1
        if part.border:
            state.last_timestamp = None  # what no process was at work in is no silence
        for fact, line in zip(read_facts(part.block), part.block.lines, strict=True):
            _apply(state, fact, line, part)
    return state


def render(state: State, /) -> bytes:
    """The board as JSON."""
    return codec.dump_pretty({"phases": phases(state), "retries": state.retries}, sort_keys=False)


def _end_stay(state: State, row: PhaseRow) -> None:
    if row.ended_by in CUT_OFF or row.seconds is None:
        return
    stays = state.stays.get(row.phase)
    if stays is None:
        stays = state.stays[row.phase] = Stays()
    stays.count += 1
    stays.total_seconds += row.seconds
    stays.longest_seconds = max(stays.longest_seconds, row.seconds)
    _push(stays.recent, row.seconds)


def _apply(state: State, fact: TypedHead, line: bytes, part: sessions.Part) -> None:
    now = fact.timestamp
    if not part.bookkeeping and sessions.is_observation(fact, line):
        if state.last_timestamp is not None and now - state.last_timestamp > state.longest_gap_seconds:
            state.longest_gap_seconds = now - state.last_timestamp
        state.last_timestamp = now
    match fact.event:
        case "phase_changed" if (
            fact.task_id is not None and fact.payload is not None and fact.payload.error is not UNSET
        ):
            if error := error_text(line):
                _note(state, fact, f"{fact.phase or 'running'}: {error}")
        case "task_finished" if fact.task_id is not None:
            _finish(state, fact, line)
        case "attempt_retry":
            payload = payload_members(line)
            stage, pattern = safe_text(payload.get("stage")), safe_text(payload.get("matched_pattern"))
            _note(state, fact, f"retry in {stage} for {pattern}")
        case "run_started":
            state.ended = False
        case "run_finished":
            state.ended = True
            if fact.status not in (None, "completed"):
                _note(state, fact, f"run {fact.status}: {safe_text(payload_members(line).get('error')) or ''}")


EVENTS = place_events(
    takes={
        "phase_changed",
        "task_finished",
        "attempt_retry",
        "run_started",
        "run_finished",
    },
    passes_over={
        "tasks_loaded",
        "reuse_loaded",
        "task_started",
        "attempt_started",
        "execution_plan_resolved",
        "attempt_finished",
        "partial_saved",
        "summary_started",
        "metric_artifacts_written",
        "stream_repaired",
        "stream_scrubbed",
        "records_lost",
    },
)
"""What this fold adds to that of the timeline."""


def _finish(state: State, fact: TypedHead, line: bytes) -> None:
    _push(state.finished_at, fact.timestamp)
    severity = safe_text(payload_members(line).get("severity"))
    if severity in ("fatal", "error") or fact.status == "failed":
        _note(state, fact, f"finished: {fact.status}, {severity or 'no severity'}")


def _note(state: State, fact: TypedHead, text: str) -> None:
    state.problems.append(Problem(fact.timestamp, fact.task_id, text[:500]))
    if len(state.problems) > MAX_PROBLEMS:
        del state.problems[0]


def _push(ring: list[float], value: float) -> None:
    ring.append(value)
    if len(ring) > 2 * RING:
        del ring[:RING]


# -- what a board shows


def phases(state: State) -> list[PhaseTimes]:
    """Return how long phases took; medians are those of the last stays. The phase with the most time comes first."""
    running = running_stays(state.rows)
    found = []
    for phase in {**state.stays, **running}:
        stays = state.stays.get(phase, Stays())
        found.append(
            PhaseTimes(
                phase=phase,
                stays=stays.count,
                running=running.get(phase, 0),
                total_seconds=round(stays.total_seconds, 6),
                median_seconds=median(stays.recent) if stays.recent else None,
                longest_seconds=stays.longest_seconds,
            )
        )
    return sorted(found, key=lambda row: (-row.total_seconds, row.phase))


def flights(state: State, now: float | None) -> list[Flight]:
    """Return the attempts in flight; see `in_flight.in_flight`."""
    return in_flight(state.rows, now, _recent(state))


def idle(state: State, now: float | None, limit: int) -> list[Flight]:
    """Return the attempts that have been longest in their phase."""
    return sorted(flights(state, now), key=lambda flight: -(flight.phase_seconds or 0.0))[:limit]


def all_stuck(state: State, now: float) -> bool:
    """Return whether every attempt in flight hangs in its phase, by the rule of `in_flight`."""
    stays, found = _recent(state), flights(state, now)
    return bool(found) and all(is_stuck(flight, stays) for flight in found)


def _recent(state: State) -> dict[str, list[float]]:
    return {phase: sorted(stays.recent) for phase, stays in state.stays.items()}


def eta(state: State, left: int, now: float) -> Finishes | None:
    """When `left` more tasks may be finished, from the run's own pace lately.

    The middle is the pace over the last finishes; the range is that of its slowest and fastest quarter. None with
    fewer than five finishes, at the end, and where the pace can't be told (a clock that stepped back).
    """
    times = state.finished_at[-RING:]
    if state.ended or left <= 0 or len(times) < MIN_FINISHES or times[-1] <= times[0]:
        return None
    pace = (times[-1] - times[0]) / (len(times) - 1)
    size = max(2, len(times) // _CHUNKS)
    chunks = [times[at : at + size + 1] for at in range(0, len(times) - size, size)]
    paces = [(part[-1] - part[0]) / (len(part) - 1) for part in chunks if part[-1] > part[0]] or [pace]
    passed = max(0.0, now - times[-1])

    def rest(seconds: float) -> float:
        return max(0.0, left * seconds - passed)

    return Finishes(rest(pace), rest(min(pace, *paces)), rest(max(pace, *paces)))
