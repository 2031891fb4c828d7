"""What scanning a stream yields: records, verdicts and findings.

A record is an event with its place. A verdict is the name of what scan saw; names and severities are those of the
stream format (docs/format.md, "Reading").
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from .events import Event, Json

Severity: TypeAlias = Literal["error", "warning", "info"]
WholeNumber: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that fits into 64 bits; a line with a larger one is read by the tolerant way."""


class Recorded(Struct, frozen=True, kw_only=True):
    """An event with its place: `seq` counts accepted records from 0, `offset` and `length` are bytes in the file.

    `line` holds the record's bytes as they stand in the file (with the newline, if it had one of its own), so that
    nothing of it is ever lost; it is empty for an event that was never a line. `line_number` counts from 1.
    """

    seq: int
    event: Event
    offset: int = 0
    length: int = 0
    line_number: int = 0
    line: bytes = b""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that is wrong or worth knowing, with its place and the reason in words.

    Any of `line`, `offset`, `length`, `seq`, `task_id`, `attempt` is None where it has no meaning; `line` counts
    from 1, `offset` from 0. `seq` is the sealed number of the record where it is known.
    """

    code: str
    severity: Severity
    message: str
    file: str = ""
    line: int | None = None
    offset: int | None = None
    length: int | None = None
    seq: int | None = None
    task_id: str | None = None
    attempt: int | None = None
    run_key: str | None = None
    run_id: str | None = None


VERDICTS: dict[str, Severity] = {
    "torn_tail": "info",
    "lost_acknowledged": "error",
    "corrupt_line": "error",
    "glued_line": "error",
    "digest_mismatch": "error",
    "chain_break": "error",
    "gap": "error",
    "repeated": "error",
    "foreign_run": "error",
    "unsealed_line": "error",
    "unsealed": "info",
}
"""Every verdict with its severity, in the order of the stream format: where several fit, the first."""


class Tail(Struct, frozen=True, kw_only=True):
    """Bytes after the last newline. They are not an error: the writer died or is at work."""

    torn_bytes: int = 0
    offset: int = 0


class Head(Struct, gc=False):
    """The part of a line that every consumer needs, decoded without its payload.

    It is what decides whether a line has the right shape: `run_id`, `event` and a numeric `timestamp` are there,
    `payload` is an object or null.
    """

    run_id: str
    event: str
    timestamp: int | float
    task_id: str | None = None


class TypedPayload(Struct, gc=False):
    """The one member that is asked for in payloads of all kinds."""

    error: Raw | UnsetType = UNSET


class TypedHead(Head, gc=False):
    """A head with the rest of its envelope, each member as a column can hold it."""

    timestamp: float
    category: str | None = None
    attempt: WholeNumber | None = None
    phase: str | None = None
    status: str | None = None
    payload: TypedPayload | None = None


class Context(Struct, frozen=True, gc=False):
    """The request that records belong to: as a rule the same in all lines of a stream."""

    orchestration_id: str | None = None
    request_key: str | None = None
    request_name: str | None = None
    request_index: WholeNumber | None = None


class Block(Struct, gc=False):
    """A batch of accepted records in file order: heads beside the bytes they came from.

    `first_seq` is the number of the first record among the accepted ones. `offsets` and `line_numbers` have one entry
    a record, or are None where the records stand one a line without a gap, the first at `offset`, in line
    `first_line`. `typed` tells that all heads are typed ones. `sessions` has the indexes of the records that open a
    writer's session (`heads.session_writer` reads who it is).
    """

    heads: list[Any]
    lines: list[bytes]
    first_seq: int
    offset: int
    first_line: int
    offsets: list[int] | None = None
    line_numbers: list[int] | None = None
    typed: bool = False
    sessions: list[int] = []


def cut_block(block: Block, start: int, end: int) -> Block:
    """Return the records of a batch from index `start` up to `end`; indexes outside it mean its borders."""
    start, end = max(0, start), min(end, len(block.heads))
    if start == 0 and end == len(block.heads):
        return block
    return Block(
        block.heads[start:end],
        block.lines[start:end],
        block.first_seq + start,
        block.offset + sum(map(len, block.lines[:start])) if block.offsets is None else block.offsets[start],
        block.first_line + start if block.line_numbers is None else block.line_numbers[start],
        offsets=None if block.offsets is None else block.offsets[start:end],
        line_numbers=None if block.line_numbers is None else block.line_numbers[start:end],
        typed=block.typed,
        sessions=[index - start for index in block.sessions if start <= index < end],
    )


class Base(Struct, frozen=True):
    """What stored files add to a stream: parsed `progress.json` and `run_info.json`, or None where there is none.

    `moment` asks for the state at an earlier moment: then what the files say of the run's end and of its plans is
    left aside, because it may come from later.
    """

    progress: Json | None = None
    run_info: Json | None = None
    moment: bool = False


class LineCounts(Struct):
    """Newlines read, and what the lines before them were. `salvaged` counts records kept from inside damaged lines."""

    read: int = 0
    kept: int = 0
    damaged: int = 0
    blank: int = 0
    salvaged: int = 0
