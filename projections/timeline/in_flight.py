"""What is in flight: tasks that started and did not finish, where they are, and whether they are stuck there.

A stay in a phase is stuck when it is longer than a minute and ten times as long as 95 of 100 finished stays in that
phase of the same run. Where fewer than five have finished, those of other runs are compared with, if they are known;
else an hour counts.
"""

from collections.abc import Iterable

from msgspec import Struct

from . import milestones, timeline

STUCK_SECONDS = 60.0
STUCK_FACTOR = 10.0
STUCK_WITHOUT_SIBLINGS_SECONDS = 3600.0
MIN_SIBLINGS = 5
OPENING = frozenset({"open_environment", "evaluate_environment"})


class Flight(Struct, frozen=True, kw_only=True):
    """One task in flight, where its newest stay in a phase is. `seconds` since the task's start, `phase_seconds` in the
    phase, `siblings_seconds` the median of finished stays there, `seq` the record that began the phase, `attempts` the
    numbers of all attempts that are running."""

    task_id: str
    category: str | None
    attempt: int | None
    phase: str
    seconds: float | None
    phase_seconds: float | None
    siblings_seconds: float | None = None
    retries: int = 0
    seq: int | None = None
    attempts: list[int] = []


def in_flight(rows: timeline.State, end: float | None, *, ended: bool) -> list[Flight]:
    """Tasks in flight at `end`, the oldest first. `ended`: by the run's own end, which closed their phases."""
    current: dict[str, list[timeline.PhaseRow]] = {}
    cut_off = [row for row in rows.phases if row.ended_by == "run_finished"] if ended else []
    for row in [*open_stays(rows), *cut_off]:
        if row.task_id is not None:
            current.setdefault(row.task_id, []).append(row)
    medians = {phase: times[len(times) // 2] for phase, times in finished_stays(rows.phases).items()}
    found: list[Flight] = []
    for task in rows.tasks.values():
        if task.starts <= task.finishes and task.task_id not in current:
            continue
        if task.finishes and task.starts <= task.finishes and ended:
            continue
        found.append(_flight(task, current.get(task.task_id, []), end, medians))
    return sorted(found, key=lambda flight: -(flight.seconds or 0.0))


def _flight(
    task: timeline.TaskRow, stays: list[timeline.PhaseRow], end: float | None, medians: dict[str, float]
) -> Flight:
    stay = max(stays, key=lambda row: row.seq, default=None)
    phase = stay.phase if stay is not None else task.last_phase or "running"
    since = stay.started_at if stay is not None else task.last_event_at
    return Flight(
        task_id=task.task_id,
        category=task.category,
        attempt=None if stay is None else stay.attempt,
        phase=phase,
        seconds=None if end is None or task.started_at is None else end - task.started_at,
        phase_seconds=None if end is None or since is None else end - since,
        siblings_seconds=medians.get(phase),
        retries=task.retries,
        seq=None if stay is None else stay.seq,
        attempts=sorted({row.attempt for row in stays if row.attempt is not None}),
    )


def open_stays(rows: timeline.State) -> list[timeline.PhaseRow]:
    """The phases that nothing has ended."""
    return [opened.phase for attempts in rows.open.values() for opened in attempts.values() if opened.phase is not None]


def finished_stays(phases: Iterable[timeline.PhaseRow]) -> dict[str, list[float]]:
    """The lengths of all finished stays, by phase, the shortest first; those that a run's end cut off don't count."""
    stays: dict[str, list[float]] = {}
    for row in phases:
        if row.ended_by is not None and row.ended_by != "run_finished" and row.seconds is not None:
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


def never_opened(rows: timeline.State, flights: list[Flight], marks: milestones.State) -> dict[str, list[Flight]]:
    """The flights, at least half of all, that spent most of the whole run opening an environment of which none was
    ever opened."""
    first, last = marks.first_timestamp, marks.last_timestamp
    if first is None or last is None or OPENING & finished_stays(rows.phases).keys():
        return {}
    most = (last - first) / 2
    waiting = [flight for flight in flights if flight.phase in OPENING and (flight.phase_seconds or 0.0) > most]
    return {waiting[0].phase: waiting} if waiting and 2 * len(waiting) >= len(flights) else {}


def stuck_phases(
    rows: timeline.State, flights: list[Flight], usual: dict[str, float] | None = None
) -> dict[str, list[Flight]]:
    """The phases that at least half of all flights hang in, with those flights; where most hang comes first.

    `usual` tells for phases how long 95 of 100 stays took in other runs.
    """
    usual = usual or {}
    stays = finished_stays(rows.phases)
    stuck: dict[str, list[Flight]] = {}
    for flight in flights:
        limit = limit_seconds(stays.get(flight.phase), usual.get(flight.phase))
        if flight.phase_seconds is not None and flight.phase_seconds > limit:
            stuck.setdefault(flight.phase, []).append(flight)
    found = {phase: tasks for phase, tasks in stuck.items() if 2 * len(tasks) >= len(flights)}
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
