"""`progress.lock`: who writes, and how far the stream is known to be on stable storage (the mark).

Three lines of JSON, padded with spaces to fixed lengths so that each is overwritten in place: the writer's record,
then two slots that take turns to hold the mark, each with a digest of its own. A slot torn by a crash is simply not
believed; the other one holds the mark before it.
"""

import json
import os
from pathlib import Path
from typing import Any

from msgspec import Struct
from xxhash import xxh3_64_hexdigest

LOCK_NAME = "progress.lock"
WRITER_BYTES = 1024
SLOT_BYTES = 128


class Mark(Struct, frozen=True):
    """The stream is on stable storage up to `bytes`; the line that ends there has number `seq` and digest `xxh3`."""

    seq: int
    bytes: int
    xxh3: str


class Witness(Struct, frozen=True):
    """What `progress.lock` says. `writer` has id, host, pid, boot, opened_at, version; both may be missing."""

    writer: dict[str, Any] | None = None
    mark: Mark | None = None


def read_witness(run_dir: Path) -> Witness:
    """The witness of a run directory; an empty one where there is no lock file or it can't be read or believed."""
    try:
        fd = os.open(run_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return Witness()
    try:
        return parse_witness(os.read(fd, WRITER_BYTES + 2 * SLOT_BYTES))
    except OSError:
        return Witness()
    finally:
        os.close(fd)


def parse_witness(content: bytes) -> Witness:
    """Return the witness in the bytes of a lock file."""
    slots = (content[WRITER_BYTES + n * SLOT_BYTES : WRITER_BYTES + (n + 1) * SLOT_BYTES] for n in (0, 1))
    marks = [mark for mark in map(_parse_slot, slots) if mark is not None]
    return Witness(_parse_object(content[:WRITER_BYTES]), max(marks, key=lambda mark: mark.bytes, default=None))


def render_writer(writer: dict[str, Any]) -> bytes:
    """Return the first line of the lock file. Raises ValueError if the record doesn't fit."""
    text = json.dumps(writer, separators=(",", ":"))
    if len(text) >= WRITER_BYTES:
        raise ValueError("the writer record is too long for the lock file")
    return text.encode().ljust(WRITER_BYTES - 1) + b"\n"


def render_slot(mark: Mark) -> bytes:
    """Return one slot of the lock file."""
    body = '{"seq":%d,"bytes":%d,"xxh3":"%s"' % (mark.seq, mark.bytes, mark.xxh3)  # noqa: UP031
    return f'{body},"check":"{xxh3_64_hexdigest(body.encode())}"}}'.encode().ljust(SLOT_BYTES - 1) + b"\n"


def slot_offset(turn: int) -> int:
    """Return where the slot of the nth mark stands; slots take turns."""
    return WRITER_BYTES + (turn % 2) * SLOT_BYTES


def _parse_slot(slot: bytes) -> Mark | None:
    members = _parse_object(slot)
    try:
        mark = Mark(int(members["seq"]), int(members["bytes"]), str(members["xxh3"]))  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        return None
    return mark if render_slot(mark) == slot else None


def _parse_object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
