"""When a live run is stalled: its writer lives, and nothing has happened for far longer than its own history has seen.

Derived, never written as a fact, and never said over a terminal event.
"""

from eventstore.run.liveness import Liveness
from projections.timeline import milestones, timeline
from projections.timeline.in_flight import in_flight, stuck_phases

STILL_SECONDS = 300.0
STILL_FACTOR = 10.0


def stall_of(
    rows: timeline.State, marks: milestones.State, now: float, usual: dict[str, float] | None = None
) -> Liveness | None:
    """Return the life of a run that stands still at `now` (Unix seconds), with its evidence; None while it moves."""
    if marks.ended is not None or marks.last_timestamp is None:
        return None
    still = now - marks.last_timestamp
    evidence = [f"no event for {still:.0f} s; the longest silence before was {marks.longest_gap_seconds:.0f} s"]
    flights = in_flight(rows, now)
    stuck = stuck_phases(rows, flights, usual)
    count = sum(len(tasks) for tasks in stuck.values())
    if flights and count == len(flights):
        words = f"all {count} attempts in flight hang in {', '.join(stuck)}"
        return Liveness("stalled", [*evidence, words], "still")
    return Liveness("stalled", evidence, "still") if is_still(still, marks.longest_gap_seconds) else None


def is_still(silent_seconds: float, longest_gap_seconds: float) -> bool:
    """Return whether a silence is far beyond all silences before it: five minutes, and ten times as long."""
    return silent_seconds > max(STILL_SECONDS, STILL_FACTOR * longest_gap_seconds)
