"""One line's head, and what its session says: the tolerant reading that scan's slow path is made of."""

from collections import Counter
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from . import codec
from .records import Head
from .seal import proves_itself, read_proof

REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a line; a RecursionError is one nested too deeply for it."""


class AnyObject(Struct, gc=False):
    """A JSON object whose members don't matter."""


class _CheckedHead(Head, gc=False):
    payload: AnyObject | None = None
    log: Raw | UnsetType = UNSET


_head_decoder = msgspec.json.Decoder(_CheckedHead)


def read_head(content: bytes) -> tuple[Head, bool]:
    """The head of one line and whether the line has a `log`. Raises MalformedLineError."""
    try:
        codec.decode_text(content)
        checked = _head_decoder.decode(content)
        return Head(checked.run_id, checked.event, checked.timestamp, checked.task_id), checked.log is not UNSET
    except REFUSALS:
        members = codec.parse_object(content)
    codec.check_shape(members)
    head = Head(members["run_id"], members["event"], members["timestamp"], codec.task_id_text(members))
    return head, "log" in members


def run_id_of(lines: list[bytes]) -> str | None:
    """The run that a stream's first lines belong to: what most of them say, so that a damaged one decides nothing."""
    votes: Counter[str] = Counter()
    for line in lines:
        proof = read_proof(line)
        if proof is None or proves_itself(line, proof):
            with suppress(*REFUSALS):
                votes[_head_decoder.decode(line).run_id] += 1
    return votes.most_common(1)[0][0] if votes else None


def adopted_prefix(content: bytes) -> dict[str, Any] | None:
    log = codec.parse_object(content).get("log")
    adopted = log.get("adopted") if isinstance(log, dict) else None
    return adopted if isinstance(adopted, dict) else None
