"""Whole lines of a file from the front, in bounded memory.

What got speed, measured on streams of 400-byte lines: one 128 KiB buffer filled by `readinto` (bigger ones fall out of
the cache), and `posix_fadvise(SEQUENTIAL)`.
"""

import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

import xxhash

from eventstore.errors import InputError

BLOCK_BYTES = 128 * 1024
_FIND_BYTES = 1 << 20
_BACK_BYTES = 64 * 1024
MAX_LINE_BYTES = 256 * 1024 * 1024
"""A longer line is not held in memory: it is passed over as damage, or as a torn tail where it never ends."""


def open_regular(path: Path) -> int:
    """Return a descriptor to read `path`. Raises InputError, in words, for whatever is not a readable regular file."""
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file", path) from None
    except PermissionError:
        raise InputError(f"{path}: no permission to read it", path) from None
    except OSError as error:
        raise InputError(f"{path}: can't be opened: {error.strerror}", path) from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise InputError(f"{path}: is {describe_kind(mode)}, not a regular file", path)
    return fd


def describe_kind(mode: int) -> str:
    """Return what a thing on disk is, in words."""
    for test, words in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISCHR, "a character device"),
    ):
        if test(mode):
            return words
    return "something unknown"


class LineReader:
    """Iterates over `(offset, view)`: batches of whole lines between two offsets of an open file.

    A view is valid until the next step. `view` is None for a line longer than MAX_LINE_BYTES, with the offset where
    it begins; `oversize_bytes` then tells its length, and `hole_bytes` how much of it is a hole in a sparse file, which
    reads as NUL bytes and is not read. After the last step `torn_offset` and `torn_bytes` tell what
    follows the last newline. The file may grow or shrink meanwhile: nothing beyond `end` is read, and a file that
    ends early simply ends.
    """

    def __init__(self, fd: int, start: int, end: int) -> None:
        self.fd, self.start, self.end = fd, start, end
        self.torn_offset, self.torn_bytes = start, 0
        self.torn_sample = b""
        self.oversize_bytes = self.hole_bytes = 0

    def __iter__(self) -> Iterator[tuple[int, memoryview | None]]:
        if self.end - self.start > BLOCK_BYTES:
            os.posix_fadvise(self.fd, self.start, self.end - self.start, os.POSIX_FADV_SEQUENTIAL)
        buffer = bytearray(min(BLOCK_BYTES, max(1, self.end - self.start)))
        view = memoryview(buffer)
        offset, have = self.start, 0
        while count := self._fill(view, offset, have):
            have += count
            whole = buffer.rfind(b"\n", 0, have) + 1
            if whole:
                yield offset, view[:whole]
                offset += whole
                have -= whole
                view[:have] = view[whole : whole + have]
            elif have == MAX_LINE_BYTES or (
                have == len(buffer) and next_data(self.fd, offset + have, self.end) - offset > MAX_LINE_BYTES
            ):
                self.oversize_bytes, ends = self._pass_over(offset, view)
                if not ends:
                    have = self.oversize_bytes
                    break
                yield offset, None
                offset, have = offset + self.oversize_bytes, 0
            elif have == len(buffer):
                buffer, view = _grow(buffer)
        self.torn_offset, self.torn_bytes = offset, have
        self.torn_sample = bytes(view[: min(have, 4096)])

    def _fill(self, view: memoryview, offset: int, have: int) -> int:
        room = min(len(view) - have, self.end - offset - have)
        return os.preadv(self.fd, [view[have : have + room]], offset + have) if room > 0 else 0

    def _pass_over(self, line_offset: int, view: memoryview) -> tuple[int, bool]:
        """Return the length of a line that is too long to hold, and whether it ends with a newline."""
        offset, self.hole_bytes = line_offset, 0
        while count := self._fill(view[:BLOCK_BYTES], offset, 0):
            newline = bytes(view[:count]).find(b"\n") + 1
            if newline:
                return offset + newline - line_offset, True
            offset += count
            data = next_data(self.fd, offset, self.end)
            self.hole_bytes += data - offset
            offset = data
        return offset - line_offset, False


def next_data(fd: int, offset: int, end: int) -> int:
    """Return the first byte at or after `offset` that lies in no hole of a sparse file; at most `end`."""
    try:
        return max(offset, min(end, os.lseek(fd, offset, os.SEEK_DATA)))
    except OSError as error:
        # ENXIO: nothing but a hole follows, or the file has shrunk. Others: the file system knows of no holes.
        return max(offset, min(end, os.fstat(fd).st_size)) if error.errno == errno.ENXIO else offset


def after_last_newline(fd: int, start: int, end: int) -> int:
    """Return the byte after the last newline in [start, end), or `start` where there is none. Holes are not read."""
    step = _BACK_BYTES
    while end > start:
        begin = max(start, end - step)
        if next_data(fd, begin, end) == end:  # a hole
            end, step = begin, 2 * step
        elif step > _BACK_BYTES:
            step //= 2
        else:
            found = os.pread(fd, end - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return start


def _grow(buffer: bytearray) -> tuple[bytearray, memoryview]:
    grown = bytearray(min(2 * len(buffer), MAX_LINE_BYTES))
    grown[: len(buffer)] = buffer
    return grown, memoryview(grown)


def line_ending_at(fd: int, end: int) -> bytes:
    """Return the whole line whose newline is the byte before `end`, read backwards in growing steps."""
    step = 64 * 1024
    while True:
        start = max(0, end - step)
        data = os.pread(fd, end - start, start)
        newline = data.rfind(b"\n", 0, len(data) - 1) + 1
        if newline or start == 0:
            return data[newline:] if data.endswith(b"\n") else b""
        if step > MAX_LINE_BYTES:
            return b""
        step *= 4


# -- Digests of byte ranges of files

_STEP = 1024 * 1024


def file_digest(fd: int, length: int) -> str:
    """XXH3-64 (lowercase hex, 16 digits) of the first `length` bytes of an open file."""
    return range_digest(fd, 0, length)


def range_digest(fd: int, start: int, end: int) -> str:
    """XXH3-64 (lowercase hex, 16 digits) of the bytes of an open file from `start` up to `end`."""
    state, offset = xxhash.xxh3_64(), start
    while offset < end and (data := os.pread(fd, min(_STEP, end - offset), offset)):
        state.update(data)
        offset += len(data)
    return state.hexdigest()


def find_last(fd: int, size: int, lines: Collection[bytes]) -> dict[bytes, tuple[int, int]]:
    """Return for each of `lines` where it stands last in the first `size` bytes: its offset, and its number from 1.

    The file is read and not mapped: one that shrinks meanwhile ends the search, and not the process.
    """
    found: dict[bytes, tuple[int, int]] = {}
    overlap = max(map(len, lines), default=1) - 1
    position, number, rest = 0, 1, b""
    while position < size:
        behind_hole = next_data(fd, position, size)
        if behind_hole > position:  # no line of text goes on in it
            position, number, rest = behind_hole, number + rest.count(b"\n"), b""
            continue
        data = os.pread(fd, min(_FIND_BYTES, size - position), position)
        if not data:
            break
        window, start = rest + data, position - len(rest)
        for line in lines:
            at = window.rfind(line)
            if at >= 0:
                found[line] = (start + at, number + window.count(b"\n", 0, at))
        rest = window[len(window) - min(overlap, len(window)) :]
        number += window.count(b"\n", 0, len(window) - len(rest))
        position += len(data)
    return found
