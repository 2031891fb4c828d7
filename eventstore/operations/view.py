"""What one pass over a run says: the facts that several commands state, each read in one way.

view = look(Run.open("results/…/r_1"))
view.status, view.counts["finished_tasks"], view.in_flight(), view.liveness(clock).life
"""

import os
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from eventstore.errors import InputError
from eventstore.format.events import TERMINAL_STATUSES, Json
from eventstore.format.records import VERDICTS, Block
from eventstore.format.values import as_number
from eventstore.redaction.redactor import redact_text
from eventstore.run.directory import PROGRESS_NAME, RUN_INFO_NAME, RUN_LOG_NAME
from eventstore.run.liveness import Liveness, life_of, paths_held_open, writer_of
from eventstore.run.run import Run
from eventstore.stream.moment import Moment
from eventstore.stream.scan import STREAM_NAME
from projections import sessions
from projections.snapshots import counts, progress, run_info
from projections.snapshots.replay import known_without_stream
from projections.timeline import milestones, timeline
from projections.timeline.in_flight import Flight, PhaseTimes, in_flight, phase_times
from projections.timeline.rows import safe_text

from .stall import stall_of

Clock = Callable[[], float]
NOT_ENDED = ("", "created", "pending", "running")
"""What a stored status can be without being an end."""
NOT_HELD = "no process of this host that may be seen has its files open"


class View(Struct, kw_only=True):
    """A run, and its folds after one pass. `rows` and `marks` are empty in a light view.

    `line_breaks` has (seq, difference) where the distance between a record's line and its seq changes.
    """

    run: Run
    at: Moment | None
    progress: progress.State
    info_state: run_info.State
    rows: timeline.State
    marks: milestones.State
    light: bool = False
    retries: int = 0
    line_breaks: list[tuple[int, int]] = []
    usual_seconds: dict[str, float] = {}
    followed: dict[str, int] | None = None
    """What a follower has noted, where the stream is followed and not scanned."""

    # -- identity and counts

    @property
    def info(self) -> Json:
        """The members that run_info.json should hold, plans aside; empty where nothing is known."""
        return run_info.WITHOUT_PLANS.record(self.info_state) or {}

    @property
    def run_id(self) -> str | None:
        """The run's id, from the stream, else from the stored files."""
        return self.progress.run_id

    @property
    def identity(self) -> dict[str, Any]:
        """Benchmark, harness, environment and model, as text whatever a record has there."""
        return {name: safe_text(self.progress.ids.get(name)) for name in progress.IDENTITY}

    @property
    def events(self) -> int:
        """How many records were read."""
        return self.progress.counts.events

    @property
    def counts(self) -> dict[str, Any]:
        """The counters of progress.json."""
        return {name: getattr(self.progress.counts, name) for name in counts.COUNTERS}

    @property
    def tasks_left(self) -> int:
        """How many of the run's tasks have not finished."""
        return max(0, self.progress.counts.total_tasks - self.progress.counts.finished_tasks)

    @property
    def verdicts(self) -> dict[str, int]:
        """What the scan noted about lines, by kind."""
        if self.followed is not None:
            return self.followed
        return dict(self.run.stream.verdicts) if self.run.stream is not None else {}

    @property
    def analysis_only(self) -> bool:
        """True where the stream is that of a re-analysis, which describes no evaluation."""
        return run_info.is_analysis_only(self.info_state)

    # -- times

    @property
    def _times(self) -> run_info.RunTimes:
        first, last = as_number(self.progress.counts.first_moment), self.last_event_at
        return run_info.run_times(self.info, self.info_state.ended, first, last)

    @property
    def started_at(self) -> float | None:
        """The Unix time of the first event, bookkeeping aside (`projections.sessions`); else that in run_info.json."""
        return as_number(self._times.started_at)

    @property
    def last_event_at(self) -> float | None:
        """The Unix time of the last event, bookkeeping left aside (`projections.sessions`)."""
        return as_number(self.progress.counts.last_moment)

    @property
    def duration_seconds(self) -> float | None:
        """Seconds from the run's start to its recorded end, else to its last event; None where the clock went back."""
        return self._times.seconds

    @property
    def clock_stepped(self) -> bool:
        """True where the clock went back so far that the run's end lies before its start."""
        return self._times.clock_stepped

    # -- how it ended

    @property
    def closed(self) -> sessions.Closing | None:
        """What `close` saw when it gave the run, which had died, its end; None where nobody closed it."""
        return None if self.info_state.ended is None else sessions.closing_of(self.info_state.ended["payload"])

    @property
    def ended_in_stream(self) -> bool:
        """True where the stream has the evaluation's terminal event."""
        return self.info_state.ended is not None and not self.analysis_only

    @property
    def stored_status(self) -> str | None:
        """The final status that a stored file has although the stream has no terminal event; run_info.json first."""
        if self.at is not None:
            return None
        stored = self.info.get("status")
        if isinstance(stored, str) and stored not in NOT_ENDED:
            return stored
        # Beside events, progress.json is only what they say, as of some moment.
        return None if self.events else _stored_end(self.run.files.progress.members)

    @property
    def status(self) -> str | None:
        """How the run ended or, without an end, how far it is: the stream's word, else the stored files'."""
        if self.ended_in_stream:
            return self.progress.counts.status
        folded = self.progress.counts.status if self.events else None
        return self.stored_status or folded

    @property
    def ended(self) -> bool:
        """True where the run's end is recorded."""
        return self.end_evidence is not None

    @property
    def final_status(self) -> str | None:
        """The status with which the run ended; None where no end is recorded."""
        return self.status if self.ended else None

    @property
    def status_from(self) -> str:
        """The name of the file that has the status."""
        if self.ended_in_stream or not self.stored_status:
            return STREAM_NAME
        return RUN_INFO_NAME if self.info.get("status") else PROGRESS_NAME

    @property
    def end_evidence(self) -> str | None:
        """How the run's end is known, in words; None where no end is recorded."""
        if self.ended_in_stream:
            return f"the stream has its terminal event: {self.progress.counts.status}"
        status = self.stored_status
        if status is None:
            return None
        lacks = f"the stream has no terminal event among {self.events} events"
        if self.analysis_only:
            lacks = "the stream is that of a re-analysis"
        elif not self.run.has_stream:
            lacks = "there is no stream"
        elif not self.events:
            lacks = "no event could be read from the stream"
        unknown = "" if status in TERMINAL_STATUSES else ", a status that is not known"
        return f"{self.status_from} says {status}{unknown}; {lacks}"

    @property
    def error(self) -> str | None:
        """The run's error, credentials masked: that of its terminal event, else the stored one."""
        error = self.info.get("error")
        return None if error is None else redact_text(str(error))

    # -- what goes on

    def in_flight(self, now: float | None = None) -> list[Flight]:
        """Return the attempts in flight, of a run that ended those at its end; see `projections.timeline.in_flight`."""
        return [] if self.analysis_only else in_flight(self.rows, now)

    def phase_times(self) -> list[PhaseTimes]:
        """Return how long the phases took."""
        return phase_times(self.rows)

    @property
    def problem(self) -> str | None:
        """What of the run can't be read, in words."""
        files = (f"{file.path.name} {file.problem}" for file in self.run.files.problems)
        return "; ".join([*files, *([self.run.problem] if self.run.problem is not None else [])]) or None

    @property
    def damage(self) -> str | None:
        """What is wrong with the stream, in words; None where nothing is that a reader must mind."""
        return damage_words(self.verdicts) if self.run.problem is None else self.run.problem

    def liveness(self, clock: Clock = time.time, held: frozenset[str] | None = None) -> Liveness:
        """Return whether a writer lives; one that lives and does nothing, far beyond its own history, is stalled.

        `held` is what `paths_held_open` gave, for a caller that asks about many runs.
        """
        found = life_of(
            self.run.path,
            ended=self.end_evidence,
            damage=self.damage,
            last_timestamp=self.last_event_at,
            clock=clock,
            open_paths=held,
        )
        if found.state != "live" or self.light:
            return found
        return stall_of(self.rows, self.marks, clock(), self.usual_seconds) or self._with_holders(found, held)

    def _with_holders(self, found: Liveness, held: frozenset[str] | None) -> Liveness:
        """Add to a life that its youth alone speaks for what this host's processes have open."""
        if found.reason != "young":
            return found
        held = paths_held_open() if held is None else held
        paths = (os.path.realpath(self.run.path / name) for name in (STREAM_NAME, RUN_LOG_NAME))
        if held.isdisjoint(paths):
            return Liveness(found.state, [*found.evidence, NOT_HELD], found.reason)
        return Liveness(found.state, found.evidence, "file_open")


def look(
    run: Run, at: Moment | None = None, *, light: bool = False, observe: Callable[[Block], None] | None = None
) -> View:
    """Read a run as it is, or at an earlier moment, in one pass over its stream.

    A light view leaves the timeline out, for lists of many runs. `observe` gets every batch as well. A stream that
    can't be read sets `run.problem`.
    """
    base = run.base(at)
    view = View(
        run=run,
        at=at,
        progress=progress.initial(base),
        info_state=run_info.WITHOUT_PLANS.initial(base),
        rows=timeline.initial(base),
        marks=milestones.initial(base),
        light=light,
    )
    for block in run.blocks(at):
        if observe is not None:
            observe(block)
        progress.apply_block(view.progress, block)
        run_info.WITHOUT_PLANS.apply_block(view.info_state, block)
        view.retries += sum(head.event == "attempt_retry" for head in block.heads)
        if not light:
            timeline.apply_block(view.rows, block)
            milestones.apply_block(view.marks, block)
            _note_lines(view.line_breaks, block)
    return view


def look_at(run: Run, at: Moment | None = None) -> View:
    """As `look`. Raises InputError where the stream is there and can't be opened."""
    view = look(run, at)
    if run.problem is not None and run.stream is None:
        raise InputError(run.problem, run.path / STREAM_NAME)
    return view


def may_be_written(run: Run, held: frozenset[str], clock: Clock = time.time) -> bool:
    """Return whether a writer may live, asked before the stream is read."""
    try:
        changed = (run.path / STREAM_NAME).stat().st_mtime
    except OSError:
        return False
    found = writer_of(run.path, last_timestamp=changed, clock=clock, open_paths=held)
    return found is not None and found.writing


def lost_words(run: Run, events: int) -> str | None:
    """Return why a stream without a single event can't be all there was of a run; None where it can."""
    if events:
        return None
    known = known_without_stream(run.files.progress.members, run.files.run_info.members, results=run.has_results)
    if known is None:
        return None
    what = "no event can be read from the stream" if run.has_stream else "there is no stream"
    return f"{what}, and {known}: the run's events are lost"


def damage_words(verdicts: dict[str, int]) -> str | None:
    """Return the errors among what a scan noted, in words; None where there is none."""
    errors = [f"{count} {name}" for name, count in verdicts.items() if VERDICTS[name] == "error"]
    return f"the stream is damaged: {', '.join(errors)}" if errors else None


def _stored_end(members: Json | None) -> str | None:
    status = (members or {}).get("status")
    return status if isinstance(status, str) and status in TERMINAL_STATUSES else None


def _note_lines(breaks: list[tuple[int, int]], block: Block) -> None:
    """Note where the distance between a record's seq and its line changes: blank and damaged lines have no seq."""
    numbers = block.line_numbers or [block.first_line]
    for index, number in enumerate(numbers):
        seq = block.first_seq + index
        if number - seq != (breaks[-1][1] if breaks else 1):
            breaks.append((seq, number - seq))
