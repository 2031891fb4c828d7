"""A file system that misbehaves on request, for the writers that take one."""

import errno
import os
import time
from collections.abc import Callable
from typing import Any

from eventstore.stream.filesystem import FileSystem


class FaultyFiles(FileSystem):
    """The real one, with faults: each attribute is a number of calls that will go wrong, or None for ever.

    `room` is how many bytes may still be written before the disk is full; `fsync_seconds` how long an fsync takes.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        self.write_errno: int | None = None
        self.short_writes = 0
        self.fsync_errno: int | None = None
        self.fsync_seconds = 0.0
        self.truncate_errno: int | None = None
        self.fsyncs = 0
        self.writes = 0
        self.replaced: list[tuple[str, int]] = []
        self.before_write: Callable[[], None] = lambda: None

    def write(self, fd: int, content: bytes | memoryview) -> int:  # type: ignore[override]
        self.before_write()
        self.writes += 1
        if self.write_errno is not None:
            raise OSError(self.write_errno, os.strerror(self.write_errno))
        if self.short_writes:
            self.short_writes -= 1
            return os.write(fd, content[: len(content) // 3])
        if self.room is None:
            return os.write(fd, content)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(fd, content[: self.room])
        self.room -= written
        return written

    def fsync(self, fd: int) -> None:
        self.fsyncs += 1
        if self.fsync_seconds:
            time.sleep(self.fsync_seconds)
        if self.fsync_errno is not None:
            raise OSError(self.fsync_errno, os.strerror(self.fsync_errno))
        os.fsync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        if self.truncate_errno is not None:
            raise OSError(self.truncate_errno, os.strerror(self.truncate_errno))
        os.ftruncate(fd, length)

    def replace(self, source: Any, target: Any) -> None:
        self.replaced.append((os.path.basename(target), os.path.getsize(source)))
        os.replace(source, target)
