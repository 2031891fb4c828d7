"""The board of a run that is being watched: who is in which phase since when, how long phases take, and when it ends.

A fold of its own, because a board must not grow with the stream: of what is over it keeps counts, totals and the last
few hundred lengths of each phase.
"""

from heapq import nsmallest
from statistics import median

from msgspec import UNSET, Struct

from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.format.records import Block, Recorded, TypedHead
from projections.fold import Base, block_of

from .in_flight import limit_seconds
from .timeline import as_float, error_text, payload_members, read_facts, safe_text

RING = 256
MAX_PROBLEMS = 20
MIN_FINISHES = 5
_CHUNKS = 4


class Stay(Struct, gc=False):
    """An attempt in a phase since a moment."""

    phase: str
    since: float


class Seat(Struct):
    """A task in flight, and where each of its attempts is; before the first phase there is none."""

    started_at: float
    attempts: dict[int | None, Stay] = {}
    retries: int = 0


class Stays(Struct):
    """Finished stays in one phase; `recent` holds the last lengths."""

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

    seconds: float
    low_seconds: float
    high_seconds: float


class State(Struct):
    """`finished_at` and `lengths` are rings of the last finished tasks."""

    seats: dict[str, Seat] = {}
    stays: dict[str, Stays] = {}
    finished_at: list[float] = []
    lengths: list[float] = []
    finished: int = 0
    retries: int = 0
    problems: list[Problem] = []
    last_timestamp: float | None = None
    longest_gap_seconds: float = 0.0
    ended: bool = False


def initial(base: Base) -> State:
    """Nothing has happened; stored files add nothing."""
    return State()


def apply(state: State, record: Recorded, /) -> State:
    """Fold one record."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /) -> State:
    """Fold a batch of records."""
    for fact, line in zip(read_facts(block), block.lines, strict=True):
        _apply(state, fact, line)
    return state


def render(state: State, /) -> bytes:
    """The board as JSON."""
    return codec.dump_pretty({"phases": phases(state), "retries": state.retries}, sort_keys=False)


def _apply(state: State, fact: TypedHead, line: bytes) -> None:
    now = fact.timestamp
    if state.last_timestamp is not None and now - state.last_timestamp > state.longest_gap_seconds:
        state.longest_gap_seconds = now - state.last_timestamp
    state.last_timestamp = now
    match fact.event:
        case "phase_changed" if fact.task_id:
            _enter(state, fact, line)
        case "task_started" if fact.task_id:
            state.seats[fact.task_id] = Seat(now)
        case "task_finished" if fact.task_id:
            _leave(state, fact, line)
        case "attempt_finished" if fact.task_id in state.seats:
            _end_stay(state, state.seats[fact.task_id].attempts.pop(fact.attempt, None), now)
        case "attempt_retry":
            _retry(state, fact, line)
        case "run_finished":
            state.ended = True
            state.seats.clear()
            if fact.status not in (None, "completed"):
                _note(state, fact, f"run {fact.status}: {safe_text(payload_members(line).get('error')) or ''}")


def _enter(state: State, fact: TypedHead, line: bytes) -> None:
    task_id = fact.task_id or ""
    seat = state.seats.get(task_id)
    if seat is None:
        seat = state.seats[task_id] = Seat(fact.timestamp)
    phase, stay = fact.phase or "running", seat.attempts.get(fact.attempt)
    if stay is None or stay.phase != phase:
        _end_stay(state, stay, fact.timestamp)
        seat.attempts[fact.attempt] = Stay(phase, fact.timestamp)
    told = fact.payload is not None and fact.payload.error is not UNSET
    if told and (error := error_text(line)):
        _note(state, fact, f"{phase}: {error}")


def _end_stay(state: State, stay: Stay | None, now: float) -> None:
    if stay is None:
        return
    stays = state.stays.get(stay.phase)
    if stays is None:
        stays = state.stays[stay.phase] = Stays()
    seconds = now - stay.since
    stays.count += 1
    stays.total_seconds += seconds
    stays.longest_seconds = max(stays.longest_seconds, seconds)
    _push(stays.recent, seconds)


def _leave(state: State, fact: TypedHead, line: bytes) -> None:
    seat = state.seats.pop(fact.task_id or "", None)
    state.finished += 1
    _push(state.finished_at, fact.timestamp)
    if seat is not None:
        for stay in seat.attempts.values():
            _end_stay(state, stay, fact.timestamp)
        _push(state.lengths, fact.timestamp - seat.started_at)
    severity = safe_text(payload_members(line).get("severity"))
    if severity in ("fatal", "error") or fact.status == "failed":
        _note(state, fact, f"finished: {fact.status}, {severity or 'no severity'}")


def _retry(state: State, fact: TypedHead, line: bytes) -> None:
    state.retries += 1
    seat = state.seats.get(fact.task_id or "")
    if seat is not None:
        seat.retries += 1
    payload = payload_members(line)
    _note(state, fact, f"retry in {safe_text(payload.get('stage'))} for {safe_text(payload.get('matched_pattern'))}")


def _note(state: State, fact: TypedHead, text: str) -> None:
    state.problems.append(Problem(fact.timestamp, fact.task_id, text[:500]))
    if len(state.problems) > MAX_PROBLEMS:
        del state.problems[0]


def _push(ring: list[float], value: float) -> None:
    ring.append(value)
    if len(ring) > 2 * RING:
        del ring[:RING]


# -- what a board shows


def phases(state: State) -> list[Json]:
    """For each phase who is in it now, and how long finished stays took; the one with most time first."""
    inside: dict[str, int] = {}
    for seat in state.seats.values():
        for stay in seat.attempts.values():
            inside[stay.phase] = inside.get(stay.phase, 0) + 1
    found = []
    for phase in dict.fromkeys([*state.stays, *inside]):
        stays = state.stays.get(phase, Stays())
        found.append(
            {
                "phase": phase,
                "running": inside.get(phase, 0),
                "stays": stays.count,
                "total_seconds": stays.total_seconds,
                "median_seconds": median(stays.recent) if stays.recent else None,
                "longest_seconds": stays.longest_seconds,
            }
        )
    return sorted(found, key=lambda row: -as_float(row["total_seconds"]))


def idle(state: State, now: float, limit: int) -> list[Json]:
    """The attempts that have been longest in their phase, against the median of finished stays there."""
    inside = (
        (stay.since, task_id, attempt)
        for task_id, seat in state.seats.items()
        for attempt, stay in seat.attempts.items()
    )
    medians = {name: median(stays.recent) for name, stays in state.stays.items() if stays.recent}
    found = []
    for since, task_id, attempt in nsmallest(limit, inside, key=lambda item: item[0]):
        seat = state.seats[task_id]
        phase = seat.attempts[attempt].phase
        found.append(
            {
                "task_id": task_id,
                "phase": phase,
                "attempt": attempt,
                "seconds": now - seat.started_at,
                "phase_seconds": now - since,
                "siblings_seconds": medians.get(phase),
                "retries": seat.retries,
            }
        )
    return found


def all_stuck(state: State, now: float) -> bool:
    """Whether every task in flight hangs in its newest phase, by the rule of `flights`."""
    limits = {phase: limit_seconds(sorted(stays.recent)) for phase, stays in state.stays.items()}
    newest = [max(seat.attempts.values(), key=lambda stay: stay.since, default=None) for seat in state.seats.values()]
    return bool(newest) and all(
        stay is not None and now - stay.since > limits.get(stay.phase, limit_seconds(None)) for stay in newest
    )


def attempts_in_flight(state: State) -> int:
    """How many attempts are in some phase; a task may have several."""
    return sum(len(seat.attempts) for seat in state.seats.values())


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
