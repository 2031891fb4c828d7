"""Digests of byte ranges of files."""

import os

import xxhash

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
