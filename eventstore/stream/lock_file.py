"""`progress.lock`: who writes, and how far the stream is known to be on stable storage (the mark).

Four lines of JSON, padded with spaces to fixed lengths so that each is overwritten in place: the writer's record,
two slots that take turns to hold the mark, and the writer's note. Slots and note have a digest of their own. A slot
torn by a crash is simply not believed; the other one holds the mark before it. The room for the note is there from
the start, so that it can be written when nothing can be appended any more.
"""

import json
import os
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from xxhash import xxh3_64_hexdigest

LOCK_NAME = "progress.lock"
WRITER_BYTES = 1024
SLOT_BYTES = 128
NOTE_BYTES = 768
NOTE_OFFSET = WRITER_BYTES + 2 * SLOT_BYTES
MAX_REASON = 300
"""Characters of a reason that a note keeps, if they fit."""


class Mark(Struct, frozen=True):
    """The stream is on stable storage up to `bytes`; the line that ends there has number `seq` and digest `xxh3`."""

    seq: int
    bytes: int
    xxh3: str


class Note(Struct, frozen=True, kw_only=True):
    """A writer's note of what the stream doesn't hold.

    `left_at` is when the session `writer` let the run go without its end.

    `lost` events could not be appended, nor could a `records_lost` event that says so, because of `reason`.
    """

    writer: str = ""
    left_at: str | None = None
    lost: int = 0
    reason: str = ""


class Witness(Struct, frozen=True):
    """The content of `progress.lock`. `writer` has id, host, pid, boot, opened_at, version; each may be missing."""

    writer: dict[str, Any] | None = None
    mark: Mark | None = None
    note: Note | None = None

    @property
    def left_at(self) -> str | None:
        """The time at which the last writer let the run go, without its end; None where no record says so."""
        if self.note is None or self.writer is None or self.note.writer != self.writer.get("id"):
            return None
        return self.note.left_at


def read_witness(run_dir: Path) -> Witness:
    """Return the witness of a run directory; an empty one where no lock file can be read and believed."""
    try:
        fd = os.open(run_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return Witness()
    try:
        return parse_witness(os.read(fd, NOTE_OFFSET + NOTE_BYTES))
    except OSError:
        return Witness()
    finally:
        os.close(fd)


def parse_witness(content: bytes) -> Witness:
    """Return the witness in the bytes of a lock file."""
    slots = (content[slot_offset(turn) : slot_offset(turn) + SLOT_BYTES] for turn in (0, 1))
    marks = [mark for mark in map(_parse_slot, slots) if mark is not None]
    mark = max(marks, key=lambda mark: mark.bytes, default=None)
    return Witness(_parse_object(content[:WRITER_BYTES]), mark, _parse_note(content[NOTE_OFFSET:]))


def render_writer(writer: dict[str, Any]) -> bytes:
    """Return the first line of the lock file. Raises ValueError if the record doesn't fit."""
    text = json.dumps(writer, separators=(",", ":"))
    if len(text) >= WRITER_BYTES:
        raise ValueError("the writer record is too long for the lock file")
    return text.encode().ljust(WRITER_BYTES - 1) + b"\n"


def render_slot(mark: Mark) -> bytes:
    """Return one slot of the lock file."""
    body = '{"seq":%d,"bytes":%d,"xxh3":"%s"' % (mark.seq, mark.bytes, mark.xxh3)  # noqa: UP031
    return _checked(body).encode().ljust(SLOT_BYTES - 1) + b"\n"


def render_note(note: Note) -> bytes:
    """Return the last line of the lock file; a reason that is too long is cut."""
    reason = note.reason[:MAX_REASON]
    while True:
        body = json.dumps(structs.asdict(note) | {"reason": reason}, separators=(",", ":"))[:-1]
        text = _checked(body)
        if len(text) < NOTE_BYTES:
            return text.encode().ljust(NOTE_BYTES - 1) + b"\n"
        reason = reason[: len(reason) // 2]


def blank_note() -> bytes:
    """Return the room for a note."""
    return b"\n".rjust(NOTE_BYTES)


def slot_offset(turn: int) -> int:
    """Return where the slot of the nth mark stands; slots take turns."""
    return WRITER_BYTES + (turn % 2) * SLOT_BYTES


def _checked(body: str) -> str:
    """Return an object without its closing brace as a whole one, its digest added as the last member."""
    return f'{body},"check":"{xxh3_64_hexdigest(body.encode())}"}}'


def _parse_slot(slot: bytes) -> Mark | None:
    members = _parse_object(slot)
    try:
        mark = Mark(int(members["seq"]), int(members["bytes"]), str(members["xxh3"]))  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        return None
    return mark if render_slot(mark) == slot else None


def _parse_note(line: bytes) -> Note | None:
    members = _parse_object(line)
    try:
        left_at = members["left_at"]  # type: ignore[index]
        note = Note(
            writer=str(members["writer"]),  # type: ignore[index]
            left_at=None if left_at is None else str(left_at),
            lost=int(members["lost"]),  # type: ignore[index]
            reason=str(members["reason"]),  # type: ignore[index]
        )
        return note if render_note(note) == line else None
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


def _parse_object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
