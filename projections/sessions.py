"""Sessions of writers within one stream: whose work is going on, and which records only look back on it.

A writer records with the first line of its session who it is (docs/format.md, "Sessions"). Two questions follow from
that, and every fold asks them here:

- Where does the work of an earlier process end? At a *border*: the first event of a session whose writer is another
  process and keeps `run_info.json`. Whatever was in flight ended with the last observation before it.
- Which records are *bookkeeping*, and so no observation of their own time? Administrative events, a terminal event that
  `close` wrote, and what a session of another process tells before it does work of its own.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from eventstore.errors import MalformedLineError
from eventstore.format import codec
from eventstore.format.events import ADMINISTRATIVE_EVENTS, Json
from eventstore.format.heads import session_writer
from eventstore.format.records import Block, Head, cut_block

Process: TypeAlias = str
"""Host, start of the machine and process id of a writer, as one text."""


class State(Struct):
    """Whose session it is. `workers` are the processes whose work may be going on.

    `settled` is False from a session's first line until it is known what the session does. A stream without sessions,
    as AgentCompass writes it, is settled from the start.
    """

    workers: list[Process] = []
    process: Process | None = None
    owns_run_info: bool = False
    settled: bool = True


class Closing(Struct, frozen=True):
    """What `close` saw of a dead run's writer when it gave the run its end."""

    state: str
    evidence: list[str]


class Part(Struct, frozen=True, gc=False):
    """Records in a row that are to be folded alike.

    `border` tells that whatever is in flight ends before them, `bookkeeping` that none is an observation of its time.
    """

    block: Block
    border: bool = False
    bookkeeping: bool = False


def parts(state: State, block: Block) -> Iterable[Part]:
    """Return a batch cut where sessions matter: as a rule it is one part, and looking costs nothing."""
    if state.settled and not block.sessions:
        return (Part(block),)
    return list(_cut(state, block))


def _cut(state: State, block: Block) -> Iterator[Part]:
    openings, start, bookkeeping = set(block.sessions), 0, not state.settled
    for index, head in enumerate(block.heads):
        if index in openings:
            if start < index:
                yield Part(cut_block(block, start, index), bookkeeping=bookkeeping)
                start = index
            _open(state, block.lines[index])
            bookkeeping = not state.settled
        if state.settled or _looks_back(state, head):
            continue
        if start < index:
            yield Part(cut_block(block, start, index), bookkeeping=bookkeeping)
            start = index
        bookkeeping = False
        if _settle(state):
            yield Part(cut_block(block, index, index + 1), border=True)
            start = index + 1
    if start < len(block.heads):
        yield Part(cut_block(block, start, len(block.heads)), bookkeeping=bookkeeping)


def _open(state: State, line: bytes) -> None:
    """Take note of who writes from this line on."""
    writer = session_writer(line)
    state.process = "\n".join(str(writer.get(name)) for name in ("host", "boot", "pid"))
    state.owns_run_info = writer.get("owns_run_info") is True
    state.settled = state.process in state.workers


def _looks_back(state: State, head: Head) -> bool:
    """Return whether a record with which another process begins its session tells of work that is not its own."""
    if head.event in ADMINISTRATIVE_EVENTS or head.event == "partial_saved":
        return True
    return head.event == "run_finished" and not state.owns_run_info


def _settle(state: State) -> bool:
    """Take note that a session does work of its own; return whether that ends the work of others."""
    state.settled = True
    if state.process is None:
        return False
    if not state.owns_run_info:
        state.workers.append(state.process)
        return False
    state.workers = [state.process]
    return True


# -- what is no observation of its own time


class _WithClosed(Struct, gc=False):
    payload: Json | None = None


_closed_decoder = msgspec.json.Decoder(_WithClosed)


def closing_words(line: bytes) -> Json | None:
    """Return what `close` noted in a terminal event: `life` and `evidence`; None for one that the run itself wrote."""
    if b'"closed"' not in line:
        return None
    try:
        payload: Any = _closed_decoder.decode(line).payload
    except codec.REFUSALS:
        try:
            payload = codec.parse_object(line).get("payload")
        except MalformedLineError:
            return None
    return closed_by(payload) if isinstance(payload, dict) else None


def closing_of(payload: Json) -> Closing | None:
    """Return what `close` saw, from the payload of a terminal event; None for one that the run itself wrote."""
    closed = closed_by(payload)
    if closed is None:
        return None
    evidence = closed.get("evidence")
    return Closing(str(closed.get("life")), [str(words) for words in evidence] if isinstance(evidence, list) else [])


def closed_by(payload: Json) -> Json | None:
    """Return what `close` noted in the payload of a terminal event; see `closing_words`."""
    closed = payload.get("closed")
    return closed if isinstance(closed, dict) else None


_MAY_BE_BOOKKEEPING = frozenset({"run_finished", *ADMINISTRATIVE_EVENTS})


def is_observation(head: Head, line: bytes) -> bool:
    """Return whether a record tells of something at the time that it has."""
    if head.event == "run_finished":
        return closing_words(line) is None
    return head.event not in ADMINISTRATIVE_EVENTS


def observations(part: Part) -> Iterable[tuple[int, Head]]:
    """Return the records that tell of something at their own time, each with its index."""
    if part.bookkeeping:
        return ()
    heads, lines = part.block.heads, part.block.lines
    if _MAY_BE_BOOKKEEPING.isdisjoint(head.event for head in heads):
        return enumerate(heads)
    return [(index, head) for index, head in enumerate(heads) if is_observation(head, lines[index])]


def first_observation(part: Part) -> Head | None:
    """Return the head of the first record that tells of something at its own time."""
    if part.bookkeeping:
        return None
    pairs = zip(part.block.heads, part.block.lines, strict=True)
    return next((head for head, line in pairs if is_observation(head, line)), None)


def last_observation(part: Part) -> int | None:
    """Return the index of the last record that tells of something at its own time."""
    if part.bookkeeping:
        return None
    heads, lines = part.block.heads, part.block.lines
    return next((i for i in range(len(heads) - 1, -1, -1) if is_observation(heads[i], lines[i])), None)
