"""Small JSON files inside a run directory, read with suspicion: no links are followed, odd JSON is accepted.

The fast path decodes only the members that a caller names (msgspec passes over the rest without building anything);
the slow path reads what JSON writers in the wild produce, as `codec.parse_object` does.
"""

import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from eventstore.errors import DamagedError, InputError, MalformedLineError
from eventstore.format.codec import dump_compact, parse_object
from eventstore.format.events import Json
from eventstore.stream.line_reader import describe_kind

MAX_BYTES = 1024 * 1024 * 1024
"""A bigger file is not read into memory; it is reported."""


class Members(msgspec.Struct, frozen=True):
    """What was read of a file: the wanted members that are there, or the problem in words. Both empty: no such file."""

    values: Json
    problem: str | None = None
    exists: bool = True
    size: int = 0


def read_members(path: Path, names: tuple[str, ...] | None, limit: int = MAX_BYTES) -> Members:
    """Return the members `names` (None: all) of the JSON object in a file. Whatever is wrong with it becomes words."""
    try:
        content = read_bytes(path, limit)
    except FileNotFoundError:
        return Members({}, exists=False)
    except InputError as error:
        return Members({}, problem=error.message.removeprefix(f"{path}: "))
    if not content.strip(b" \t\r\n\0"):
        words = "is empty" if not content.strip() else f"is {len(content)} NUL bytes"
        return Members({}, problem=words, size=len(content))
    try:
        return Members(_decode(content, names), size=len(content))
    except MalformedLineError as error:
        return Members({}, problem=f"is {error}".replace("of the line", "of the file"), size=len(content))


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the bytes of a regular file that is no link. Raises FileNotFoundError, or InputError in words."""
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        words = "is a symbolic link" if path.is_symlink() else f"can't be read: {error.strerror}"
        raise InputError(f"{path}: {words}", path) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: is {describe_kind(status.st_mode)}, not a regular file", path)
        if status.st_size > limit:
            raise InputError(f"{path}: is {status.st_size} bytes long, and the limit is {limit}", path)
        return _read_all(fd, status.st_size)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}", path) from None
    finally:
        os.close(fd)


def _decode(content: bytes, names: tuple[str, ...] | None) -> Json:
    return parse_object(content) if names is None else pick_members(content, names)


def _read_all(fd: int, size: int) -> bytes:
    """Return the bytes of an open file that was `size` long; one that grew or shrank is read as far as that."""
    content = os.read(fd, size + 1)
    if len(content) == size:
        return content  # the usual case: one call
    parts = [content]
    while len(content) and sum(map(len, parts)) <= size:
        content = os.read(fd, size + 1)
        parts.append(content)
    return b"".join(parts)


def read_raw_members(path: Path) -> dict[str, Raw]:
    """Return every member of the JSON object in a file, unparsed. Raises DamagedError and InputError, in words."""
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise DamagedError(f"{path}: is gone", path) from None
    try:
        return msgspec.json.decode(content, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return {name: Raw(dump_compact(value)) for name, value in parse_object(content).items()}
    except MalformedLineError as error:
        raise DamagedError(f"{path}: is {error}".replace("of the line", "of the file"), path) from None


def pick_members(content: bytes, names: tuple[str, ...]) -> Json:
    """Return the members `names` of a JSON object; nothing else of it is built. Raises MalformedLineError."""
    try:
        found = _picker(names).decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        members = parse_object(content)
        return {name: members[name] for name in names if name in members}
    values = ((name, getattr(found, f"f{index}")) for index, name in enumerate(names))
    return {name: value for name, value in values if value is not UNSET}


@lru_cache(maxsize=64)
def _picker(names: tuple[str, ...]) -> Any:
    fields = [(f"f{index}", Any | UnsetType, UNSET) for index in range(len(names))]
    renames = {f"f{index}": name for index, name in enumerate(names)}
    return msgspec.json.Decoder(msgspec.defstruct("Picked", fields, rename=renames, gc=False))
