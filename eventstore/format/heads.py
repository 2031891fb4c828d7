"""One line's head, and what its session says: the tolerant reading that scan's slow path is made of."""

from collections import Counter
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple

from eventstore.errors import MalformedLineError

from . import codec
from .records import Context, Head, TypedPayload, WholeNumber
from .seal import proves_itself, read_proof


class AnyObject(Struct, gc=False):
    """A JSON object whose members don't matter."""


class _CheckedHead(Head, gc=False):
    payload: AnyObject | None = None
    log: Raw | UnsetType = UNSET


BlockDecoder: TypeAlias = msgspec.json.Decoder[list[Head]]


@lru_cache(maxsize=64)
def block_decoder(run_id: str, names: tuple[str, ...], *, sealed: bool) -> BlockDecoder | None:
    """Return a decoder for a whole block of a stream's lines that refuses every line that has to be looked at.

    The run's id, the event names seen so far, and whether lines are sealed, are part of its type. None for a run id
    that UTF-8 has no form for. Making one takes longer than reading a small stream, so they are kept.
    """
    fields: list[Any] = [
        ("run_id", Literal[run_id]),
        ("event", Literal[names]),
        ("timestamp", int | float),
        ("task_id", str | None, None),
        ("payload", AnyObject | None, None),
    ]
    if not sealed:
        fields.append(("log", None, None))
    try:
        return msgspec.json.Decoder(list[msgspec.defstruct("StreamHead", fields, gc=False)])  # type: ignore[misc]
    except (UnicodeEncodeError, TypeError):
        return None


class Typed(Struct, gc=False):
    """What all typed heads of scanned blocks are; their fields are those of TypedHead and Context."""


_NOTHING: Any = type(None)


@lru_cache(maxsize=64)
def typed_decoder(run_id: str, names: tuple[str, ...], context: Context, *, sealed: bool) -> BlockDecoder | None:
    """As `block_decoder`, with typed heads: it refuses whatever no column has, and lines of another context."""
    wanted: list[Any] = [
        (name, _NOTHING, None) if value is None else (name, Literal[value])
        for name, value in zip(Context.__struct_fields__, astuple(context), strict=True)
    ]
    fields: list[Any] = [
        ("run_id", Literal[run_id]),
        ("event", Literal[names]),
        ("timestamp", float),
        ("task_id", str | None, None),
        ("category", str | None, None),
        ("attempt", WholeNumber | None, None),
        ("phase", str | None, None),
        ("status", str | None, None),
        ("payload", TypedPayload | None, None),
        *wanted,
        ("log", AnyObject | UnsetType, UNSET) if sealed else ("log", None, None),
    ]
    try:
        head = msgspec.defstruct(
            "TypedStreamHead", fields, bases=(Typed,), gc=False, kw_only=True, forbid_unknown_fields=True
        )
        return msgspec.json.Decoder(list[head])  # type: ignore[valid-type]
    except UnicodeEncodeError:
        return None


_context_decoder = msgspec.json.Decoder(Context)


def context_of(line: bytes) -> Context:
    """Return the request that a line says it belongs to; an empty one where it can't be read."""
    try:
        return _context_decoder.decode(line)
    except codec.REFUSALS:
        return Context()


_head_decoder = msgspec.json.Decoder(_CheckedHead)


def read_head(content: bytes) -> tuple[Head, bool]:
    """Return the head of one line and whether the line has a `log`. Raises MalformedLineError."""
    try:
        codec.decode_text(content)
        checked = _head_decoder.decode(content)
        return Head(checked.run_id, checked.event, checked.timestamp, checked.task_id), checked.log is not UNSET
    except codec.REFUSALS:
        if content.startswith(codec.BYTE_ORDER_MARK):  # the one that a line may begin with is gone by now
            raise MalformedLineError("not JSON: it begins with two byte order marks") from None
        members = codec.parse_object(content)
    codec.check_shape(members)
    head = Head(members["run_id"], members["event"], members["timestamp"], codec.task_id_text(members))
    return head, "log" in members


def run_id_of(lines: list[bytes]) -> str | None:
    """The run that a stream's first lines belong to: the first one's, unless nobody agrees with it and others agree.

    Lines that prove themselves count before others. So a damaged first line decides nothing.
    """
    proven: list[str] = []
    others: list[str] = []
    for line in lines:
        proof = read_proof(line)
        if proof is None or proves_itself(line, proof):
            with suppress(*codec.REFUSALS):
                (others if proof is None else proven).append(_head_decoder.decode(line).run_id)
    names = proven or others
    if not names:
        return None
    most, votes = Counter(names).most_common(1)[0]
    return most if names.count(names[0]) == 1 < votes else names[0]


_OPENS_SESSION = b',"log":{"writer":'


def session_writer(line: bytes) -> dict[str, Any]:
    """Return the writer whose session a line opens: `id`, `host`, `pid`, `boot`, …; empty for any other line.

    For most lines it is one look at the bytes: only a session's first line holds these, or a payload that imitates it.
    """
    if _OPENS_SESSION not in line:
        return {}
    try:
        log = codec.parse_object(line).get("log")
    except MalformedLineError:
        return {}
    writer = log.get("writer") if isinstance(log, dict) else None
    return writer if isinstance(writer, dict) else {}


def adopted_prefix(content: bytes) -> dict[str, Any] | None:
    log = codec.parse_object(content).get("log")
    adopted = log.get("adopted") if isinstance(log, dict) else None
    return adopted if isinstance(adopted, dict) else None
