"""Boards of runs, live: each run is followed and folded, new runs are found, and memory does not grow with events.

One of the composers of `eventstore` and `projections`.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from eventstore.format import codec
from eventstore.format.events import TERMINAL_STATUSES, Json
from eventstore.format.records import Block
from eventstore.run.directory import PROGRESS_NAME, RUN_INFO_NAME, RunDir, find_runs, is_run_dir, read_json_file
from eventstore.run.liveness import Life, life_of, paths_held_open
from eventstore.stream.follow import Follower
from eventstore.stream.notify import Waker
from eventstore.stream.scan import STREAM_NAME
from projections import Base
from projections.snapshots import progress, run_info
from projections.snapshots.plans import State as NoPlans
from projections.timeline import board

from .stall import is_still
from .status import info_slots

Clock = Callable[[], float]
SEARCH_SECONDS = 5.0
"""How often new runs are looked for, and lives asked about."""
SHOWN_IDLE = 5


class Watched:
    """One run that is followed."""

    def __init__(self, run: RunDir, waker: Waker) -> None:
        self.run = run
        self.follower = Follower(run.path / STREAM_NAME, waker)
        self._waker = waker
        self._restarts = 0
        self.life: Life | None = None
        self._begin()

    def _begin(self) -> None:
        files = [read_json_file(self.run.path / name).members for name in (PROGRESS_NAME, RUN_INFO_NAME)]
        base = Base(progress=files[0], run_info=files[1])
        self.origin: Json | None = None
        self.progress, self.info, self.board = progress.initial(base), run_info.initial(base), board.initial(base)

    def read(self) -> int:
        """Fold what is new; how many records that were."""
        self._waker.watch(self.run.path)
        count = 0
        for block in self.follower.read():
            if self.follower.restarts != self._restarts:
                self._restarts = self.follower.restarts
                self._begin()
            self.origin = self.origin or origin_of(block)
            progress.apply_block(self.progress, block)
            run_info.apply_block(self.info, block)
            self.info.plans = NoPlans()
            board.apply_block(self.board, block)
            count += len(block.heads)
        return count

    def ask_life(self, now: float, held: frozenset[str]) -> Life:
        """Whether its writer lives, at most as old as the last search."""
        last = self.board.last_timestamp
        info = run_info.record(self.info) or {}
        life = life_of(
            self.run.path,
            finished=self.board.ended or info.get("status") in TERMINAL_STATUSES,
            damaged=any(name not in ("unsealed", "torn_tail") for name in self.follower.verdicts),
            last_timestamp=last,
            clock=lambda: now,
            open_paths=held,
        )
        if life.name == "live" and last is not None:
            still = is_still(now - last, self.board.longest_gap_seconds)
            if still or board.all_stuck(self.board, now):
                life = Life("stalled", [f"no event for {now - last:.0f} s"])
        self.life = life
        return life

    def page(self, now: float) -> Json:
        """The board of the run as it is."""
        shown = progress.snapshot(self.progress)
        info = run_info.record(self.info) or {}
        events = self.progress.counts.events
        left = max(0, self.progress.counts.total_tasks - self.progress.counts.finished_tasks)
        writing = self.life is not None and self.life.writing
        moment = now if writing else self.board.last_timestamp or now
        del shown["active_tasks"]
        return {
            "run_key": self.run.run_key,
            **shown,
            "origin": self.origin,
            "status": shown["status"] if events else info.get("status") or shown["status"],
            "error": info.get("error"),
            "life": self.life,
            "events": events,
            "retries": self.board.retries,
            "eta": board.eta(self.board, left, now) if writing else None,
            "slots": {"used": len(self.board.seats), "of": info_slots(info)},
            "attempts_in_flight": board.attempts_in_flight(self.board),
            "phases": board.phases(self.board),
            "idle": board.idle(self.board, moment, SHOWN_IDLE),
            "problems": list(self.board.problems[-SHOWN_IDLE:]),
            "verdicts": dict(self.follower.verdicts),
            "problem": self.follower.problem if events or self.run.path.joinpath(STREAM_NAME).exists() else None,
        }


def origin_of(block: Block) -> Json:
    """The place in an orchestration that a run's events name; members that they don't have are None."""
    event = codec.decode_accepted(block.lines[0], block.heads[0])
    return {name: getattr(event, name) for name in ("orchestration_id", "request_name", "request_index")}


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
            if search or watched.life is None or watched.life.name != "finished":
                changed = watched.read() > 0 or changed
        if search:
            held = paths_held_open()
            for watched in self.runs.values():
                watched.ask_life(now, held)
        return changed

    def _search(self, now: float) -> bool:
        first, before = self._searched_at is None, len(self.runs)
        self._searched_at = now
        for run in find_runs(self.root, self._on_problem if first else None):
            if run.run_key not in self.runs:
                self.runs[run.run_key] = Watched(run, self._waker)
        return len(self.runs) > before

    def pages(self) -> Iterator[Json]:
        """The boards, in the order of the runs' paths."""
        now = self._clock()
        for key in sorted(self.runs):
            yield self.runs[key].page(now)

    @property
    def single(self) -> bool:
        """Whether the folder is a run itself, and not one above runs."""
        return is_run_dir(self.root)

    @property
    def over(self) -> bool:
        """Whether no run can change any more, as far as is known."""
        return all(run.life is not None and not run.life.writing for run in self.runs.values())

    def wait(self, seconds: float) -> bool:
        """Wait until something changes, at most so long."""
        return self._waker.wait(seconds)

    def close(self) -> None:
        """Give descriptors back."""
        self._waker.close()
