"""What there is to see of runs at a glance: one row a run, and the page of one run.

A composer: scan and folds give the facts, `life` says whether somebody still writes.
"""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from eventstore.errors import InputError
from eventstore.format.events import Json
from eventstore.run.directory import PROGRESS_NAME, RUN_INFO_NAME, RunDir, find_runs, open_run, read_json_file
from eventstore.run.liveness import Life, life_of, paths_held_open
from eventstore.stream.scan import STREAM_NAME, Scan, scan
from projections import Base
from projections.snapshots import progress, run_info
from projections.snapshots.plans import State as NoPlans
from projections.timeline import board, timeline
from projections.timeline.in_flight import finished_stays

from .pool import map_in_order
from .replay import Moment, limit_stream
from .stall import stall_now

Clock = Callable[[], float]
SLOWEST_SHOWN = 5
SHARED_BYTES = 32 * 1024 * 1024
"""Streams of fewer bytes than this are read sooner than another process is there to help."""


class _Seen(Struct):
    """The folds of one run, and the scan that fed them (None without a stream)."""

    progress: progress.State
    run_info: run_info.State
    timeline: timeline.State
    stream: Scan | None
    retries: int = 0
    problem: str | None = None


def run_rows(
    root: Path, on_problem: Callable[[str, str], None], clock: Clock = time.time, *, processes: int = 1
) -> Iterator[Json]:
    """One row for each run at or below `root`. A run that can't be read has `problem` in words and what is known.

    Several processes are started only where there is enough to read for them.
    """
    runs = list(find_runs(root, on_problem))
    enough = processes > 1 and sum(map(_stream_bytes, runs)) > SHARED_BYTES
    row = partial(run_row, clock=clock, held=paths_held_open())
    yield from map_in_order(row, runs, processes if enough else 1)


def _stream_bytes(run: RunDir) -> int:
    try:
        return (run.path / STREAM_NAME).stat().st_size
    except OSError:
        return 0


def run_row(run: RunDir, clock: Clock = time.time, held: frozenset[str] | None = None) -> Json:
    """Status, life, tasks, counts, retries, duration, last event and error of one run.

    `status` is what the stream says, or run_info.json where there is no stream. Times are Unix seconds.
    """
    seen = _look(run.path, None, with_timeline=False)
    info = run_info.record(seen.run_info) or {}
    folded = progress.snapshot(seen.progress)
    events = seen.progress.counts.events
    first, last = seen.progress.counts.first_timestamp, seen.progress.counts.last_timestamp
    life = _life(run.path, seen, info, clock, held)
    counters = {name: value for name, value in folded.items() if name.endswith(("_tasks", "_started", "_finished"))}
    del counters["active_tasks"]
    return {
        "run_key": run.run_key,
        "run_id": folded["run_id"],
        **{name: folded[name] for name in progress.IDENTITY},
        "status": folded["status"] if events else info.get("status"),
        "life": life.name,
        **counters,
        "retries": seen.retries,
        "started_at": first,
        "last_event_at": last,
        "duration_seconds": None if first is None or last is None else last - first,
        "error": info.get("error"),
        "events": events,
        "verdicts": dict(seen.stream.verdicts) if seen.stream else {},
        "problem": seen.problem,
    }


def run_page(path: str | os.PathLike[str], moment: Moment | None = None, clock: Clock = time.time) -> Json:
    """The members of progress.json plus `life`, `phases`, `slowest`, `in_flight`, `slots` and, while it lives, `eta`.

    At an earlier moment, `life` is None: whether a writer lives can be asked of now only. Raises InputError where
    there is no run.
    """
    run_dir = open_run(path)
    seen = _look(run_dir, moment, with_timeline=True)
    if seen.problem and seen.stream is None:
        raise InputError(seen.problem, run_dir / STREAM_NAME)
    info = run_info.record(seen.run_info) or {}
    page = progress.snapshot(seen.progress)
    if not seen.progress.counts.events:
        page["status"] = info.get("status") or page["status"]
    life = None if moment is not None else _life(run_dir, seen, info, clock, None)
    last = seen.progress.counts.last_timestamp
    return {
        **page,
        "life": life,
        "error": info.get("error"),
        "phases": phase_times(seen.timeline, last),
        "slowest": slowest_tasks(seen.timeline, last),
        "eta": expected_end(seen, clock()) if life is not None and life.writing else None,
        "slots": {"used": len(page["active_tasks"]), "of": info_slots(info)},
        "in_flight": in_flight(page["active_tasks"], seen.timeline, last),
        "retries": seen.retries,
        "events": seen.progress.counts.events,
        "verdicts": dict(seen.stream.verdicts) if seen.stream else {},
    }


def expected_end(seen: _Seen, now: float) -> board.Finishes | None:
    """Return when the rest of the tasks may be finished, from the run's own recent pace; see `board.eta`."""
    finishes = sorted(task.finished_at for task in seen.timeline.tasks.values() if task.finished_at is not None)
    counts = seen.progress.counts
    left = max(0, counts.total_tasks - counts.finished_tasks)
    return board.eta(board.State(finished_at=list(finishes[-board.RING :])), left, now)


def info_slots(info: Json) -> int | None:
    """How many tasks may run at once, as the request in run_info.json says."""
    request = info.get("request")
    execution = request.get("execution") if isinstance(request, dict) else None
    found = execution.get("task_concurrency") if isinstance(execution, dict) else None
    return found if isinstance(found, int) else None


def phase_times(rows: timeline.State, last: float | None) -> list[Json]:
    """For each phase, the stays in it and how long they took; the one with the most time first."""
    spent: dict[str, list[float]] = {}
    running: dict[str, int] = {}
    for row in [*rows.phases, *timeline.open_phases(rows)]:
        seconds = row.seconds if row.ended_at is not None or last is None else last - row.started_at
        spent.setdefault(row.phase, []).append(seconds or 0.0)
        running[row.phase] = running.get(row.phase, 0) + (row.ended_at is None)
    found = [
        {
            "phase": phase,
            "stays": len(times),
            "running": running[phase],
            "total_seconds": sum(times),
            "median_seconds": median(times),
            "longest_seconds": max(times),
        }
        for phase, times in spent.items()
    ]
    return sorted(found, key=lambda row: -float(row["total_seconds"]))


def slowest_tasks(rows: timeline.State, last: float | None) -> list[Json]:
    """The tasks that took longest, finished or not."""
    found = []
    for task in rows.tasks.values():
        end = task.finished_at if task.finished_at is not None else last
        if task.started_at is not None and end is not None:
            found.append(
                {
                    "task_id": task.task_id,
                    "seconds": end - task.started_at,
                    "status": task.status,
                    "retries": task.retries,
                }
            )
    return sorted(found, key=lambda row: -float(row["seconds"] or 0))[:SLOWEST_SHOWN]  # type: ignore[arg-type]


def in_flight(active: Json, rows: timeline.State, last: float | None) -> list[Json]:
    """Tasks that have started and not finished: phase, attempt, and how long at the run's last event, oldest first."""
    found = []
    stays = finished_stays(rows.phases)
    for task_id, entry in active.items():
        task = rows.tasks.get(task_id)
        started = None if task is None else task.started_at
        found.append(
            {
                "task_id": task_id,
                "category": entry["category"],
                "phase": entry["phase"] or "running",
                "attempt": entry["attempt"],
                "seconds": None if started is None or last is None else last - started,
                "phase_seconds": None if last is None else last - entry["updated_at"],
                "siblings_seconds": siblings[len(siblings) // 2] if (siblings := stays.get(entry["phase"])) else None,
            }
        )
    return sorted(found, key=lambda row: -(row["seconds"] or 0.0))


def _look(run_dir: Path, moment: Moment | None, *, with_timeline: bool) -> _Seen:
    files = [read_json_file(run_dir / name) for name in (PROGRESS_NAME, RUN_INFO_NAME)]
    base = Base(progress=files[0].members, run_info=files[1].members, moment=moment is not None)
    seen = _Seen(progress.initial(base), run_info.initial(base), timeline.initial(base), None)
    seen.problem = "; ".join(f"{file.path.name} {file.problem}" for file in files if file.problem) or None
    if not os.path.lexists(run_dir / STREAM_NAME):
        return seen
    try:
        seen.stream = scan(run_dir / STREAM_NAME)
        for block in limit_stream(run_dir, seen.stream, moment).blocks():
            progress.apply_block(seen.progress, block)
            run_info.apply_block(seen.run_info, block)
            seen.run_info.plans = NoPlans()  # nobody asks for them here
            seen.retries += sum(head.event == "attempt_retry" for head in block.heads)
            if with_timeline:
                timeline.apply_block(seen.timeline, block)
    except InputError as error:
        seen.problem = error.message
    return seen


def _life(run_dir: Path, seen: _Seen, info: Json, clock: Clock, held: frozenset[str] | None) -> Life:
    life = life_of(
        run_dir,
        finished="status" in info,
        damaged=seen.stream is not None and seen.stream.damaged,
        last_timestamp=_number(seen.progress.counts.last_timestamp),
        clock=clock,
        open_paths=held,
    )
    return (stall_now(run_dir, clock()) or life) if life.name == "live" else life


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
