"""What is in flight: attempts that began and did not end, where they are, and whether they are stuck there.

A stay in a phase is stuck when it is longer than a minute and ten times as long as 95 of 100 finished stays in that
phase of the same run. Where fewer than five have finished, those of other runs are compared with, if they are known;
else an hour counts.
"""

from collections import Counter
from collections.abc import Iterable
from statistics import median

from msgspec import Struct

from . import milestones, timeline

STUCK_SECONDS = 60.0
STUCK_FACTOR = 10.0
STUCK_WITHOUT_SIBLINGS_SECONDS = 3600.0
MIN_SIBLINGS = 5
CUT_OFF = frozenset({"run_finished", "died"})
"""What ends a stay without its own doing: such a stay is not a finished one."""
HUNG_SECONDS, HUNG_FACTOR = 5.0, 5.0
OPENING = frozenset({"open_environment", "evaluate_environment"})


class Flight(Struct, frozen=True, kw_only=True):
    """One attempt in flight, and the phase that it is in.

    `attempt` is None for a task between its attempts. `duration_seconds` counts from the attempt's start (its task's,
    without a number), `phase_seconds` from the start of its stay in the phase. `siblings_seconds` is the median of
    finished stays in that phase, `retries` counts those of the attempt, `seq` is the record that began the stay.
    """

    task_id: str
    category: str | None
    attempt: int | None
    phase: str
    duration_seconds: float | None
    phase_seconds: float | None
    siblings_seconds: float | None = None
    retries: int = 0
    seq: int | None = None


def in_flight(
    rows: timeline.State, now: float | None = None, stays: dict[str, list[float]] | None = None
) -> list[Flight]:
    """Return the attempts that were open at the last record before the run's end, the oldest first.

    Of a run that has no terminal event these are the ones that are open still; then `now`, a Unix time in seconds, is
    the moment up to which their times count, else that is the last record. `stays` are the lengths of finished stays
    by phase, for a caller that keeps them elsewhere than in `rows`.
    """
    over = rows.cut_off is not None
    end = rows.cut_off_at if over else rows.last_timestamp if now is None else now
    medians = {phase: median(times) for phase, times in (stays or finished_stays(rows.phases)).items()}
    attempts = rows.cut_off if rows.cut_off is not None else timeline.open_attempts(rows)
    flights = [_flight(rows, attempt, end, medians) for attempt in attempts]
    return sorted(flights, key=lambda flight: -(flight.duration_seconds or 0.0))


def _flight(rows: timeline.State, opened: timeline.OpenAttempt, end: float | None, medians: dict[str, float]) -> Flight:
    task, attempt = rows.tasks.get(opened.task_id), rows.attempts.get((opened.task_id, opened.attempt))
    row, stay = attempt or task, opened.stay
    phase = stay.phase if stay is not None else row.last_phase if row is not None and row.last_phase else "running"
    started_at = None if row is None else row.started_at
    since = stay.started_at if stay is not None else opened.since
    if since is None:
        since = started_at if task is None else task.last_event_at
    return Flight(
        task_id=opened.task_id,
        category=None if task is None else task.category,
        attempt=opened.attempt,
        phase=phase,
        duration_seconds=timeline.worked_seconds(
            rows,
            (opened.task_id, None if attempt is None else opened.attempt),
            since if started_at is None else started_at,
            end,
        ),
        phase_seconds=timeline.elapsed_seconds(since, end),
        siblings_seconds=medians.get(phase),
        retries=0 if row is None else row.retries,
        seq=None if stay is None else stay.seq,
    )


def open_stays(rows: timeline.State) -> list[timeline.PhaseRow]:
    """Return the phases that nothing has ended."""
    return [opened.phase for attempts in rows.open.values() for opened in attempts.values() if opened.phase is not None]


def finished_stays(phases: Iterable[timeline.PhaseRow]) -> dict[str, list[float]]:
    """The lengths of all finished stays, by phase, the shortest first; those that a run's end cut off don't count."""
    stays: dict[str, list[float]] = {}
    for row in phases:
        if row.ended_by is not None and row.ended_by not in CUT_OFF and row.seconds is not None:
            stays.setdefault(row.phase, []).append(row.seconds)
    return {phase: sorted(times) for phase, times in stays.items()}


def limit_seconds(stays: list[float] | None, usual_seconds: float | None = None) -> float:
    """Beyond which a stay is stuck, from the sorted lengths of its finished siblings; where they are too few, from
    what 95 of 100 stays took in other runs, if that is known."""
    if not stays or len(stays) < MIN_SIBLINGS:
        if usual_seconds is not None:
            return max(STUCK_SECONDS, STUCK_FACTOR * usual_seconds)
        return STUCK_WITHOUT_SIBLINGS_SECONDS
    return max(STUCK_SECONDS, STUCK_FACTOR * stays[min(len(stays) - 1, len(stays) * 95 // 100)])


def is_stuck(flight: Flight, stays: dict[str, list[float]], usual: dict[str, float] | None = None) -> bool:
    """Return whether an attempt hangs in its phase, by the lengths of finished stays there, here or in other runs."""
    limit = limit_seconds(stays.get(flight.phase), (usual or {}).get(flight.phase))
    return flight.phase_seconds is not None and flight.phase_seconds > limit


def never_opened(rows: timeline.State, flights: list[Flight], marks: milestones.State) -> dict[str, list[Flight]]:
    """The flights, at least half of all, that spent most of the whole run opening an environment of which none was
    ever opened."""
    first, last = marks.first_timestamp, marks.last_timestamp
    if first is None or last is None or OPENING & finished_stays(rows.phases).keys():
        return {}
    most = (last - first) / 2
    waiting = [flight for flight in flights if flight.phase in OPENING and (flight.phase_seconds or 0.0) > most]
    return {waiting[0].phase: waiting} if waiting and 2 * len(waiting) >= len(flights) else {}


def hung_at_deadline(rows: timeline.State, flights: list[Flight]) -> dict[str, list[Flight]]:
    """Return the phase that at least half of all flights hung in as the time limit of the request ran out.

    With smaller limits than `is_stuck`: a run that lives may still go on, here the end is known.
    """
    stays = finished_stays(rows.phases)
    hung: dict[str, list[Flight]] = {}
    for flight in flights:
        times = stays.get(flight.phase, [])
        limit = HUNG_FACTOR * times[min(len(times) - 1, len(times) * 95 // 100)] if times else 0.0
        if len(times) >= MIN_SIBLINGS and (flight.phase_seconds or 0.0) > max(HUNG_SECONDS, limit):
            hung.setdefault(flight.phase, []).append(flight)
    return {phase: tasks for phase, tasks in hung.items() if 2 * len(tasks) >= len(flights)}


def stuck_phases(
    rows: timeline.State, flights: list[Flight], usual: dict[str, float] | None = None
) -> dict[str, list[Flight]]:
    """Return the phases that at least half of all flights hang in, with those flights; where most hang comes first.

    `usual` tells for phases how long 95 of 100 stays took in other runs.
    """
    usual = usual or {}
    stays = finished_stays(rows.phases)
    stuck: dict[str, list[Flight]] = {}
    for flight in flights:
        if is_stuck(flight, stays, usual):
            stuck.setdefault(flight.phase, []).append(flight)
    found = {phase: tasks for phase, tasks in stuck.items() if 2 * len(tasks) >= len(flights)}
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


class PhaseTimes(Struct, frozen=True, kw_only=True):
    """One phase: how many stays in it have ended, how many go on (`running`), and how long the ended ones took.

    A stay that the run's end cut off is neither: it is in flight.
    """

    phase: str
    stays: int
    running: int
    total_seconds: float
    median_seconds: float | None
    longest_seconds: float


def phase_times(rows: timeline.State) -> list[PhaseTimes]:
    """Return the times of all phases, the one with the most time first."""
    running = running_stays(rows)
    stays = finished_stays(rows.phases)
    found = [_phase_row(phase, stays.get(phase, []), running.get(phase, 0)) for phase in {**stays, **running}]
    return sorted(found, key=lambda row: (-row.total_seconds, row.phase))


def running_stays(rows: timeline.State) -> dict[str, int]:
    """Return how many stays of each phase go on; none of them after the run's end."""
    return {} if rows.cut_off is not None else dict(Counter(stay.phase for stay in open_stays(rows)))


def _phase_row(phase: str, seconds: list[float], running: int) -> PhaseTimes:
    """Return the row of one phase from the lengths of its ended stays."""
    return PhaseTimes(
        phase=phase,
        stays=len(seconds),
        running=running,
        total_seconds=round(sum(seconds, 0.0), 6),
        median_seconds=median(seconds) if seconds else None,
        longest_seconds=max(seconds, default=0.0),
    )
