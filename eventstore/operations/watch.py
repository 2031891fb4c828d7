"""Boards of runs, live: each run is followed and folded, new runs are found, and memory does not grow with events.

One of the composers of `eventstore` and `projections`.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from eventstore.format import codec
from eventstore.format.records import Block
from eventstore.format.values import iso_utc
from eventstore.run.directory import RunDir, find_runs, is_run_dir
from eventstore.run.liveness import Life, Liveness, paths_held_open
from eventstore.run.run import Run
from eventstore.stream.follow import Follower
from eventstore.stream.notify import Waker
from eventstore.stream.scan import STREAM_NAME
from projections.snapshots import progress, run_info
from projections.timeline import board, milestones
from projections.timeline.in_flight import Flight, PhaseTimes
from projections.timeline.rows import as_int, safe_text

from .stall import is_still
from .status import Counters, Slots, info_slots, members_of
from .view import Clock, View

SEARCH_SECONDS = 5.0
"""How often new runs are looked for, and lives asked about."""
SHOWN_IDLE = 5


class Origin(Struct, frozen=True, kw_only=True):
    """The place in an orchestration that a run's events name; what they don't say is None."""

    orchestration_id: str | None = None
    request_name: str | None = None
    request_index: int | None = None


class WatchedProblem(Struct, frozen=True, kw_only=True):
    """Something that went wrong lately, with its time as ISO 8601 in UTC."""

    at: str | None
    task_id: str | None
    text: str


class WatchPage(Counters, kw_only=True):
    """The board of one run. `in_flight` are the attempts that are open, `idle` those longest in their phase.

    `current_phase_counts`, `elapsed_seconds` and `updated_at` are those of progress.json. `eta` is there while the
    writer lives.
    """

    run_key: str
    origin: Origin | None
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
    retries: int
    phases: list[PhaseTimes]
    in_flight: list[Flight]
    idle: list[Flight]
    slots: Slots
    eta: board.Finishes | None
    problems: list[WatchedProblem]
    problem: str | None
    current_phase_counts: dict[str, int]
    elapsed_seconds: float
    updated_at: float | None
    schema: Literal["compass-es.watch.v1"] = "compass-es.watch.v1"


class Watched:
    """One run that is followed."""

    def __init__(self, found: RunDir, waker: Waker) -> None:
        self.found = found
        self.follower = Follower(found.path / STREAM_NAME, waker)
        self._waker = waker
        self._restarts = 0
        self.liveness: Liveness | None = None
        self._begin()

    def _begin(self) -> None:
        self.origin: Origin | None = None
        run = Run.of(self.found)
        base = run.base()
        self.board = board.initial(base)
        self._view = View(
            run=run,
            at=None,
            progress=progress.initial(base),
            info_state=run_info.WITHOUT_PLANS.initial(base),
            rows=self.board.rows,
            marks=milestones.initial(base),
            light=True,
        )

    def read(self) -> int:
        """Fold what is new, and return how many records that were."""
        self._waker.watch(self.found.path)
        count = 0
        for block in self.follower.read():
            if self.follower.restarts != self._restarts:
                self._restarts = self.follower.restarts
                self._begin()
            self.origin = self.origin or origin_of(block)
            progress.apply_block(self._view.progress, block)
            run_info.WITHOUT_PLANS.apply_block(self._view.info_state, block)
            board.apply_block(self.board, block)
            count += len(block.heads)
        self._view.followed = dict(self.follower.verdicts)
        return count

    def ask_life(self, clock: Clock, held: frozenset[str]) -> Liveness:
        """Return whether its writer lives, at most as old as the last search."""
        if self._view.events == 0 or not self._view.ended:
            self._view.run.forget_files()  # an end may have been written since they were read
            self._view.info_state.stored = self._view.run.files.run_info.members
        found, now, last = self._view.liveness(clock, held), clock(), self.board.last_timestamp
        if found.state == "live" and last is not None:
            still = is_still(now - last, self.board.longest_gap_seconds)
            if still or board.all_stuck(self.board, now):
                found = Liveness("stalled", [f"no event for {now - last:.0f} s"], "still")
        self.liveness = found
        return found

    @property
    def writing(self) -> bool:
        """True where its writer lives, as of the last search."""
        return self.liveness is not None and self.liveness.writing

    def page(self, now: float) -> WatchPage:
        """Return the board of the run as it is."""
        view, shown = self._view, progress.snapshot(self._view.progress)
        moment = now if self.writing else None
        has_stream = view.events > 0 or view.run.has_stream
        return WatchPage(
            **members_of(view),
            run_key=self.found.run_key,
            origin=self.origin,
            life=None if self.liveness is None else self.liveness.life,
            ended=view.ended,
            retries=self.board.retries,
            phases=board.phases(self.board),
            in_flight=board.flights(self.board, moment),
            idle=board.idle(self.board, moment, SHOWN_IDLE),
            slots=Slots(len(shown["active_tasks"]), info_slots(view.info)),
            eta=board.eta(self.board, view.tasks_left, now) if self.writing else None,
            problems=[
                WatchedProblem(at=iso_utc(found.timestamp), task_id=found.task_id, text=found.text)
                for found in self.board.problems[-SHOWN_IDLE:]
            ],
            problem=self.follower.problem if has_stream else view.problem,
            current_phase_counts=shown["current_phase_counts"],
            elapsed_seconds=shown["elapsed_seconds"],
            updated_at=shown["updated_at"],
        )


def origin_of(block: Block) -> Origin:
    """Return the place in an orchestration that the first record of a batch names."""
    event = codec.decode_accepted(block.lines[0], block.heads[0])
    return Origin(
        orchestration_id=safe_text(event.orchestration_id),
        request_name=safe_text(event.request_name),
        request_index=as_int(event.request_index),
    )


class Watch:
    """All runs at or below a folder. `look` brings them up to date; `wait` waits for something to happen."""

    def __init__(self, root: Path, on_problem: Callable[[str, str], None], clock: Clock = time.time) -> None:
        self.root = root
        self.runs: dict[str, Watched] = {}
        self._on_problem, self._clock = on_problem, clock
        self._waker = Waker()
        self._searched_at: float | None = None

    def look(self) -> bool:
        """Read what is new everywhere, and now and then look for new runs. Whether anything changed."""
        now = self._clock()
        changed = False
        search = self._searched_at is None or not 0 <= now - self._searched_at < SEARCH_SECONDS
        if search:
            changed = self._search(now)
        for watched in self.runs.values():
            if search or watched.liveness is None or watched.liveness.state != "finished":
                changed = watched.read() > 0 or changed
        if search:
            held = paths_held_open()
            for watched in self.runs.values():
                watched.ask_life(self._clock, held)
        return changed

    def _search(self, now: float) -> bool:
        first, before = self._searched_at is None, len(self.runs)
        self._searched_at = now
        for run in find_runs(self.root, self._on_problem if first else None):
            if run.run_key not in self.runs:
                self.runs[run.run_key] = Watched(run, self._waker)
        return len(self.runs) > before

    def pages(self) -> Iterator[WatchPage]:
        """Yield the boards, in the order of the runs' paths."""
        now = self._clock()
        for key in sorted(self.runs):
            yield self.runs[key].page(now)

    @property
    def single(self) -> bool:
        """True where the folder is a run itself, and not one above runs."""
        return is_run_dir(self.root)

    @property
    def over(self) -> bool:
        """True where no run can change any more, as far as is known."""
        return all(run.liveness is not None and not run.writing for run in self.runs.values())

    def wait(self, seconds: float) -> bool:
        """Wait until something changes, at most so long."""
        return self._waker.wait(seconds)

    def close(self) -> None:
        """Give descriptors back."""
        self._waker.close()
