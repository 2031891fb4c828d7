"""Digests of byte ranges of files."""

import os

import xxhash

_STEP = 1024 * 1024


def file_digest(fd: int, length: int) -> str:
    """XXH3-64 (lowercase hex, 16 digits) of the first `length` bytes of an open file."""
    state, offset = xxhash.xxh3_64(), 0
    while offset < length and (data := os.pread(fd, min(_STEP, length - offset), offset)):
        state.update(data)
        offset += len(data)
    return state.hexdigest()
