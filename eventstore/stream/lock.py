"""The exclusive lock on a run directory: `flock` on `progress.lock`.

Writers, `replay`, `repair` and `close` hold it while they write; readers probe with a momentary shared one, so an
exclusive attempt is repeated for a second before it is refused.
"""

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from eventstore.errors import LockedError, OutputError

from .lock_file import LOCK_NAME, read_witness

RETRY_SECONDS = 1.0


class RunLock:
    """Holds the lock of one run directory until `release`, or as a context manager.

    A lock file made only for the time of a change (`temporary=True`) goes away with it, so that a directory that
    AgentCompass wrote keeps its look. Raises LockedError, naming the holder, if another process has the lock, and
    OutputError if the lock file can't be made.
    """

    def __init__(self, run_dir: Path, *, temporary: bool = False, retry_seconds: float = RETRY_SECONDS) -> None:
        self.path = run_dir / LOCK_NAME
        self.fd, self.created = _acquire(run_dir, self.path, time.monotonic() + retry_seconds)
        self._temporary = temporary and self.created

    def release(self) -> None:
        """Let go; harmless when done twice."""
        if self.fd < 0:
            return
        if self._temporary:
            self.path.unlink(missing_ok=True)  # still locked: whoever waits sees that the name has gone, and asks again
        os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.release()
        return False


def is_locked(run_dir: Path) -> bool | None:
    """Whether a process holds the lock; None where there is no lock file, or the file system can't tell."""
    try:
        fd = os.open(run_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        return False
    finally:
        os.close(fd)


def _acquire(run_dir: Path, path: Path, deadline: float) -> tuple[int, bool]:
    while True:
        fd, created = _open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            if time.monotonic() >= deadline:
                raise LockedError(f"{run_dir}: {describe_holder(run_dir)}", run_dir) from None
            time.sleep(0.02)
            continue
        except OSError as error:
            os.close(fd)
            raise OutputError(f"{path}: the file system gives no locks: {error.strerror}", path) from None
        if _still_named(fd, path):
            return fd, created
        os.close(fd)  # removed or replaced between open and lock


def _open(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open(path, flags), False
        except FileNotFoundError:
            return os.open(path, flags | os.O_CREAT, 0o644), True
    except OSError as error:
        raise OutputError(f"{path}: can't be opened for the lock: {error.strerror}", path) from None


def _still_named(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def describe_holder(run_dir: Path) -> str:
    """Who holds the lock, in words: host, pid and start, as far as the lock file says."""
    writer: dict[str, Any] = read_witness(run_dir).writer or {}
    if not writer:
        return "another process is writing here"
    return (
        f"another writer is at work here: process {writer.get('pid')} on host {writer.get('host')}, "
        f"since {writer.get('opened_at')}"
    )
