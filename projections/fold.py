"""The fold: run a projection over a stream.

A projection is a module with `initial`, `apply` and `render` (see `Projection`). One that must be fast over millions of
records also has `apply_block`, which takes a batch of them at once; `apply` is then that with a batch of one, so that
there is a single implementation.
"""

from collections.abc import Iterable, Set
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from eventstore.format import codec
from eventstore.format.events import KNOWN_EVENTS, event_name
from eventstore.format.heads import session_writer
from eventstore.format.records import Base, Block, Head, Recorded

__all__ = ["Base", "BlockStream", "Places", "Projection", "block_of", "blocks_of", "fold", "place_events"]

S = TypeVar("S")


class Projection(Protocol[S]):
    """A module with these three functions is a projection. `apply` may reuse its own state and touches nothing else."""

    def initial(self, base: Base) -> S: ...
    def apply(self, state: S, record: Recorded, /) -> S: ...
    def render(self, state: S, /) -> bytes: ...


class Places(NamedTuple):
    """What a fold does with each known event: those it `takes`, and those it `passes_over` as it does unknown ones."""

    takes: frozenset[str]
    passes_over: frozenset[str]


def place_events(*, takes: Set[str], passes_over: Set[str]) -> Places:
    """Return the places that a fold gives to events, checked: a module with a hole in them can't be imported.

    So whoever adds an event meets every fold. Raises LookupError naming the events that have no place, or two.
    """
    known, placed = KNOWN_EVENTS.keys(), takes | passes_over
    wrong = (known ^ placed) | (takes & passes_over)
    if wrong:
        raise LookupError(
            f"each known event has one place in a fold; these have none, two, or are unknown: {sorted(wrong)}"
        )
    return Places(frozenset(takes), frozenset(passes_over))


@runtime_checkable
class BlockStream(Protocol):
    """A stream that can be had in batches; `eventstore.stream.scan.Scan` is one."""

    def blocks(self) -> Iterable[Block]: ...


def fold(projection: Any, stream: Iterable[Recorded] | BlockStream, base: Base | None = None) -> Any:
    """Return the state of `projection` after all records of `stream`."""
    state = projection.initial(base or Base())
    apply_block = getattr(projection, "apply_block", None)
    if apply_block is None:
        for record in cast("Iterable[Recorded]", stream):
            state = projection.apply(state, record)
        return state
    for block in blocks_of(stream):
        apply_block(state, block)
    return state


def blocks_of(stream: Iterable[Recorded] | BlockStream) -> Iterable[Block]:
    """Return the stream in batches: as it offers them, else one record each."""
    return stream.blocks() if isinstance(stream, BlockStream) else map(block_of, stream)


def block_of(record: Recorded) -> Block:
    """Return a batch of one. An event that was never a line is encoded, so that all projections see the same thing."""
    event = record.event
    head = Head(event.run_id, event_name(event), event.timestamp, event.task_id)
    line = record.line or codec.encode(event)
    opening = [0] if session_writer(line) else []
    return Block([head], [line], record.seq, record.offset, record.line_number, sessions=opening)
