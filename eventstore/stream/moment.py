"""A moment in a stream, and the records up to it, in the one pass that reads the stream to its end."""

from collections.abc import Iterator

from msgspec import Struct

from eventstore.errors import UsageError
from eventstore.format.records import Block, cut_block

from .scan import Scan

HELD_BYTES = 64 * 1024 * 1024
"""How much of a stream is kept in memory while it isn't known whether the moment is past."""


class Moment(Struct, frozen=True):
    """A point in a stream: after the first `events` records, or up to the last one at or before `timestamp`.

    `timestamp` is Unix time in seconds.
    """

    events: int | None = None
    timestamp: float | None = None


class Prefix:
    """The records of a stream up to a moment. The scan runs to its end all the same, so its verdicts are complete."""

    def __init__(self, stream: Scan, moment: Moment) -> None:
        self._stream, self._moment = stream, moment

    def blocks(self) -> Iterator[Block]:
        """Yield the records in batches. Raises UsageError where the stream has fewer than the moment asks for."""
        if self._moment.events is not None:
            yield from self._first(self._moment.events)
        elif self._moment.timestamp is not None:
            yield from self._until(self._moment.timestamp)

    def _first(self, limit: int) -> Iterator[Block]:
        for block in self._stream.blocks():
            if block.first_seq < limit:
                yield cut_block(block, 0, limit - block.first_seq)
        require_events(limit, self._stream.records)

    def _until(self, timestamp: float) -> Iterator[Block]:
        """Yield the records up to the last one, in file order, that is not later: clocks go back, so one may follow.

        What comes after it is held back. Where that is more than `HELD_BYTES`, it is let go, and the stream is read a
        second time if a record that belongs follows after all.
        """
        held: list[Block] = []
        held_bytes = yielded = limit = 0
        for block in self._stream.blocks():
            count = _count_until(block, timestamp)
            if count:
                limit = block.first_seq + count
            if held_bytes > HELD_BYTES:
                held = []
                continue
            if count:
                yield from held
                yield cut_block(block, 0, count)
                held, held_bytes, yielded = [], 0, limit
            if count < len(block.heads):
                held.append(cut_block(block, count, len(block.heads)))
                held_bytes += sum(map(len, held[-1].lines))
        if limit > yielded:
            yield from self._again(yielded, limit)

    def _again(self, start: int, end: int) -> Iterator[Block]:
        for block in Scan(self._stream.path, end=self._stream.bytes).blocks():
            if start < block.first_seq + len(block.heads) and block.first_seq < end:
                yield cut_block(block, start - block.first_seq, end - block.first_seq)


def require_events(wanted: int, recorded: int) -> None:
    """Raise UsageError where a moment lies beyond the end of a run."""
    if wanted > recorded:
        events = "1 event" if recorded == 1 else f"{recorded} events"
        raise UsageError(f"event {wanted} is beyond the end: the run has {events}")


def _count_until(block: Block, timestamp: float) -> int:
    """Return how many records of a batch lie up to its last one that is not later than a time."""
    last = (index for index in range(len(block.heads), 0, -1) if block.heads[index - 1].timestamp <= timestamp)
    return next(last, 0)
