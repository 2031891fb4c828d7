"""Waiting for a folder to change: file events of the kernel where there are any, and a clock in any case.

Network mounts and containers often deliver no file events, so a wait always ends after its time. Linux only for the
events (inotify, through libc); elsewhere it is a sleep.
"""

import contextlib
import ctypes
import os
import select
import time
from pathlib import Path

_MODIFY, _MOVED_TO, _CREATE, _DELETE_SELF = 0x2, 0x80, 0x100, 0x400
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC


class Waker:
    """Watches folders; `wait(seconds)` returns early, and True, when something in one of them changed."""

    def __init__(self) -> None:
        self._folders: set[Path] = set()
        self._fd = -1
        with contextlib.suppress(OSError, AttributeError):
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.inotify_init1(_NONBLOCK | _CLOEXEC)

    @property
    def has_events(self) -> bool:
        """True where the kernel tells; else waiting is sleeping."""
        return self._fd >= 0 and bool(self._folders)

    def watch(self, folder: Path) -> None:
        """Watch one more folder. Where that fails (no such folder, too many watches), the clock alone wakes."""
        if self._fd < 0 or folder in self._folders:
            return
        mask = _MODIFY | _MOVED_TO | _CREATE | _DELETE_SELF
        if self._libc.inotify_add_watch(self._fd, os.fsencode(folder), mask) >= 0:
            self._folders.add(folder)

    def wait(self, seconds: float) -> bool:
        """Wait for a change, at most so long."""
        if not self.has_events:
            time.sleep(seconds)
            return False
        ready, _, _ = select.select([self._fd], [], [], seconds)
        if ready:
            self._drain()
        return bool(ready)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._fd, 1 << 16):
                pass

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
