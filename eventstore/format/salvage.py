"""Whole records inside a line that is no record: what a crash in mid-line and the next append leave behind.

    {"run_id":"r","event":"phase_ch{"run_id":"r","event":"task_started", … }\\n

Only a record with all thirteen members of the envelope counts, so that an object nested in a damaged line's payload
isn't taken for one.
"""

import json
import re

from msgspec import Struct

from eventstore.errors import MalformedLineError

from . import codec
from .events import ENVELOPE, Json

MAX_ATTEMPTS = 1000
"""Candidates that turn out to be no record before the rest of a line is left as rubbish: hostile input ends here."""

_CANDIDATE = re.compile(r'\{\s*"run_id"\s*:')
_scanner = json.JSONDecoder()


class Piece(Struct, frozen=True):
    """A whole record inside a line: where it begins and ends (bytes in the line) and its members."""

    start: int
    end: int
    members: Json


def find_records(line: bytes) -> list[Piece]:
    """Return the whole records in a line, in order. Bytes that are no UTF-8 can only be rubbish between them."""
    text = line.decode("utf-8", "surrogateescape")
    pieces: list[Piece] = []
    position, failures = 0, 0
    while failures < MAX_ATTEMPTS and (found := _CANDIDATE.search(text, position)):
        piece = _read_record(text, found.start())
        if piece is None:
            failures += 1
            position = found.end()
            continue
        end, members = piece
        before = len(text[: found.start()].encode("utf-8", "surrogateescape"))
        length = len(text[found.start() : end].encode("utf-8", "surrogateescape"))
        pieces.append(Piece(before, before + length, members))
        position = end
    return pieces


def _read_record(text: str, start: int) -> tuple[int, Json] | None:
    try:
        members, end = _scanner.raw_decode(text, start)
        if not all(name in members for name in ENVELOPE):
            return None
        codec.check_shape(members)
        text[start:end].encode("utf-8")  # rubbish bytes inside would have become lone surrogates
    except (ValueError, RecursionError, MalformedLineError):
        return None
    return end, members
