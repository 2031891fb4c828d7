"""What there is to see of runs at a glance: one row a run, and the page of one run."""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from eventstore.format.events import Json
from eventstore.format.values import as_object, iso_utc
from eventstore.run.directory import RunDir, find_all
from eventstore.run.liveness import Life, paths_held_open
from eventstore.run.run import Run
from eventstore.stream.moment import Moment
from eventstore.stream.scan import STREAM_NAME
from projections import sessions
from projections.snapshots import progress
from projections.timeline import board, timeline
from projections.timeline.in_flight import Flight, PhaseTimes

from .pool import map_in_order
from .view import Clock, View, look, look_at, may_be_written

__all__ = [
    "Counters",
    "Flight",
    "PhaseTimes",
    "RunList",
    "RunPage",
    "RunSummary",
    "Slots",
    "SlowTask",
    "expected_end",
    "info_slots",
    "members_of",
    "run_page",
    "run_row",
    "run_rows",
    "slowest_tasks",
]

SLOWEST_SHOWN = 5
SHARED_BYTES = 32 * 1024 * 1024
"""Streams of fewer bytes than this are read sooner than another process is there to help."""


class Counters(Struct, kw_only=True):
    """A run's names, and the counters of its progress.json."""

    run_id: str | None
    benchmark: str | None = None
    harness: str | None = None
    environment: str | None = None
    model: str | None = None
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


class RunSummary(Counters, kw_only=True):
    """One run in a list. `status` is what the stream says, or the stored files where it has no end.

    Times are ISO 8601 in UTC. `problem` says in words what can't be read. `clock_stepped` tells that the clock went
    back from the first event to the last, so that there is no duration.
    """

    run_key: str
    status: str | None
    life: Life
    retries: int
    started_at: str | None
    last_event_at: str | None
    duration_seconds: float | None
    clock_stepped: bool
    error: str | None
    events: int
    verdicts: dict[str, int]
    problem: str | None


class RunList(Struct, kw_only=True):
    """The runs at or below a folder, in the order of their paths."""

    runs: list[RunSummary]
    schema: Literal["compass-es.runs.v1"] = "compass-es.runs.v1"


class SlowTask(Struct, frozen=True, kw_only=True):
    """A task that took long. One that has not finished counts up to the last event."""

    task_id: str
    duration_seconds: float
    status: str | None
    retries: int


class Slots(Struct, frozen=True):
    """How many tasks are under way, and how many may be at once (None: not said)."""

    used: int
    of: int | None


class RunPage(Counters, kw_only=True):
    """One run. `active_tasks`, `current_phase_counts`, `elapsed_seconds` and `updated_at` are those of progress.json.

    `in_flight` are the attempts that were open at the last event; `ended` tells that the run has ended since. At an
    earlier moment `life` is None: whether a writer lives can be asked of now only. `closed` is what `close` saw of the
    writer when it gave the run, which had died, its end.
    """

    status: str | None
    life: Life | None
    ended: bool
    error: str | None
    events: int
    verdicts: dict[str, int]
    started_at: str | None
    last_event_at: str | None
    duration_seconds: float | None
    clock_stepped: bool
    closed: sessions.Closing | None
    retries: int
    phases: list[PhaseTimes]
    slowest: list[SlowTask]
    in_flight: list[Flight]
    slots: Slots
    eta: board.Finishes | None
    problem: str | None
    active_tasks: Json
    current_phase_counts: dict[str, int]
    elapsed_seconds: float
    updated_at: float | None
    schema: Literal["compass-es.show.v1"] = "compass-es.show.v1"


def run_rows(
    root: Path, on_problem: Callable[[str, str], None], clock: Clock = time.time, *, processes: int = 1
) -> Iterator[RunSummary]:
    """Yield one row for each run at or below `root`. A run that can't be read has `problem` in words.

    Several processes are started only where there is enough to read for them. Raises InputError where `root` can't be
    read, or holds no run.
    """
    runs = list(find_all([root], on_problem))
    enough = processes > 1 and sum(map(_stream_bytes, runs)) > SHARED_BYTES
    row = partial(run_row, clock=clock, held=paths_held_open())
    yield from map_in_order(row, runs, processes if enough else 1)


def _stream_bytes(found: RunDir) -> int:
    try:
        return (found.path / STREAM_NAME).stat().st_size
    except OSError:
        return 0


def run_row(found: RunDir, clock: Clock = time.time, held: frozenset[str] | None = None) -> RunSummary:
    """Return the row of one run; see `RunSummary`."""
    run = Run.of(found)
    held = paths_held_open() if held is None else held
    view = look(run, light=not may_be_written(run, held, clock))
    return RunSummary(
        **members_of(view),
        run_key=found.run_key,
        life=view.liveness(clock, held).life,
        retries=view.retries,
        problem=view.problem,
    )


def members_of(view: View) -> dict[str, Any]:
    """Return the members that a row, a page and a board of a run state alike."""
    return {
        "run_id": view.run_id,
        **view.identity,
        **view.counts,
        "status": view.status,
        "error": view.error,
        "events": view.events,
        "verdicts": view.verdicts,
        "started_at": iso_utc(view.started_at),
        "last_event_at": iso_utc(view.last_event_at),
        "duration_seconds": view.duration_seconds,
        "clock_stepped": view.clock_stepped,
    }


def run_page(path: str | os.PathLike[str], moment: Moment | None = None, clock: Clock = time.time) -> RunPage:
    """Return the page of one run, as it is or at an earlier moment; see `RunPage`.

    Raises InputError where there is no run, or its stream can't be opened.
    """
    view = look_at(Run.open(path), moment)
    liveness = None if moment is not None else view.liveness(clock)
    writing = liveness is not None and liveness.writing
    members = progress.snapshot(view.progress)
    return RunPage(
        **members_of(view),
        life=None if liveness is None else liveness.life,
        ended=view.ended,
        closed=view.closed,
        retries=view.retries,
        phases=view.phase_times(),
        slowest=slowest_tasks(view.rows),
        in_flight=view.in_flight(),
        slots=Slots(len(members["active_tasks"]), info_slots(view.info)),
        eta=expected_end(view, clock()) if writing else None,
        problem=view.problem,
        active_tasks=members["active_tasks"],
        current_phase_counts=members["current_phase_counts"],
        elapsed_seconds=members["elapsed_seconds"],
        updated_at=members["updated_at"],
    )


def expected_end(view: View, now: float) -> board.Finishes | None:
    """Return when the rest of the tasks may be finished, from the run's own recent pace; see `board.eta`."""
    finishes = sorted(task.finished_at for task in view.rows.tasks.values() if task.finished_at is not None)
    return board.eta(board.State(finished_at=finishes[-board.RING :]), view.tasks_left, now)


def info_slots(info: Json) -> int | None:
    """Return how many tasks may run at once, as the request in run_info.json says."""
    slots = as_object(as_object(info.get("request")).get("execution")).get("task_concurrency")
    return slots if isinstance(slots, int) and not isinstance(slots, bool) else None


def slowest_tasks(rows: timeline.State) -> list[SlowTask]:
    """Return the tasks that took longest, finished or not."""
    tasks = ((timeline.task_seconds(rows, task), task) for task in rows.tasks.values())
    slow = [(seconds, task) for seconds, task in tasks if seconds is not None and seconds >= 0]
    slow = sorted(slow, key=lambda pair: -pair[0])[:SLOWEST_SHOWN]
    return [
        SlowTask(task_id=task.task_id, duration_seconds=seconds, status=task.status, retries=task.retries)
        for seconds, task in slow
    ]
