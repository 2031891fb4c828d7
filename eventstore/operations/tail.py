"""The events of one run as they were recorded, filtered: those that are there, and those that are still to come.

tail = Tail("results/…/r_1", EventFilter(events=("attempt_retry",)))
for members in tail.read(): ...
tail.wait(1.0)
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from eventstore.errors import InputError, UsageError
from eventstore.format import codec
from eventstore.format.events import KNOWN_EVENTS, Json
from eventstore.format.records import VERDICTS, Block, Finding
from eventstore.run.directory import open_run
from eventstore.stream.follow import Follower, last_blocks
from eventstore.stream.scan import STREAM_NAME


class EventFilter(Struct, frozen=True, kw_only=True):
    """Which events are asked for; an empty member asks for all.

    `tasks` are parts of task ids, `events` and `phases` are names, `since` is a Unix time in seconds.
    """

    tasks: Sequence[str] = ()
    events: Sequence[str] = ()
    phases: Sequence[str] = ()
    since: float | None = None

    def passes(self, members: Json) -> bool:
        """Return whether an event with these members is asked for."""
        task = members["task_id"]
        return (
            (not self.events or members["event"] in self.events)
            and (not self.phases or members["phase"] in self.phases)
            and (not self.tasks or (isinstance(task, str) and any(part in task for part in self.tasks)))
            and (self.since is None or members["timestamp"] >= self.since)
        )


class Tail:
    """One run's events from the front. `ended` becomes true with the run's terminal event.

    `errors` are the damages that the last `read` met, `restarts` counts how often the stream was replaced or cut.
    """

    def __init__(self, path: str | os.PathLike[str], wanted: EventFilter) -> None:
        """Begin at the front of a run's stream. Raises InputError where `path` is not a run directory."""
        self.run_dir: Path = open_run(path)
        self.ended = False
        self._wanted = wanted
        self._follower = Follower(self.run_dir / STREAM_NAME)
        self._unmet = set(wanted.events) - KNOWN_EVENTS.keys()
        """Names of no event type that we know, and that no record has had so far."""

    def read(self) -> Iterator[Json]:
        """Yield the members of every event that is new since the last call and passes the filter."""
        for block in self._follower.read():
            yield from self._members_in(block)

    def read_last(self, count: int) -> Iterator[Json]:
        """Yield the members of the last `count` events that pass the filter, instead of the first `read`.

        Without a filter the end of a long stream is enough, where it has no damage: what stands before is not read, and
        its damages are not met.
        """
        blocks = None
        with suppress(InputError):  # `read` meets it again, and notes it
            blocks = last_blocks(self._follower.path, count) if self._wanted == EventFilter() else None
        found = self.read() if blocks is None else (members for block in blocks for members in self._members_in(block))
        yield from deque(found, maxlen=count)

    def _members_in(self, block: Block) -> Iterator[Json]:
        names = self._wanted.events
        for head, line in zip(block.heads, block.lines, strict=True):
            self.ended = self.ended or head.event == "run_finished"
            if names and head.event not in names:
                continue
            self._unmet.discard(head.event)
            members = codec.envelope_members(codec.decode_accepted(line, head))
            if self._wanted.passes(members):
                yield members

    def unknown_names(self) -> str | None:
        """Return a sentence about filter names that no event type and no record so far has; None without any."""
        if not self._unmet:
            return None
        names = ", ".join(map(repr, sorted(self._unmet)))
        return f"no event is called {names}; events are {', '.join(sorted(KNOWN_EVENTS))}"

    def refuse_unknown_names(self) -> None:
        """Raise UsageError where the filter has a name that no event type and no record of this run has."""
        words = self.unknown_names()
        if words is not None:
            raise UsageError(words, self.run_dir)

    @property
    def has_stream(self) -> bool:
        """True where the run has a stream at all."""
        return os.path.lexists(self._follower.path)

    @property
    def problem(self) -> str | None:
        """Why the stream can't be read at the moment, in words."""
        return self._follower.problem

    @property
    def errors(self) -> list[Finding]:
        """The damages that the last `read` met."""
        return [finding for finding in self._follower.new_findings if VERDICTS.get(finding.code) == "error"]

    @property
    def restarts(self) -> int:
        """How often the stream was replaced or cut, and read from its front again."""
        return self._follower.restarts

    def wait(self, seconds: float) -> bool:
        """Wait until something in the run's folder changes, at most so long."""
        return self._follower.wait(seconds)
