"""The exclusive lock on a run directory: `flock` on `progress.lock`, and on the stream where there is one.

The second one keeps a writer alone although somebody removes `progress.lock` under it.
Writers, `replay`, `repair` and `close` hold it while they write; readers probe with a momentary shared one, so an
exclusive attempt is repeated for a second before it is refused.
"""

import fcntl
import os
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from eventstore.errors import LockedError, OutputError

from .atomic_file import own_inode
from .lock_file import LOCK_NAME, read_witness

RETRY_SECONDS = 1.0
STREAM_NAME = "progress.jsonl"


class RunLock:
    """Holds the lock of one run directory until `release`, or as a context manager.

    A lock file made only for the time of a change (`temporary=True`) goes away with it, so that a directory that
    AgentCompass wrote keeps its look. Raises LockedError, naming the holder, if another process has the lock, and
    OutputError if the lock file can't be made.
    """

    def __init__(self, run_dir: Path, *, temporary: bool = False, retry_seconds: float = RETRY_SECONDS) -> None:
        self.path, self.run_dir = run_dir / LOCK_NAME, run_dir
        self._retry_seconds, self._stream_fd = retry_seconds, -1
        self.fd, self.created = _acquire(run_dir, self.path, time.monotonic() + retry_seconds)
        self._temporary = temporary and self.created
        self.hold_stream()

    def hold_stream(self) -> None:
        """Lock the stream, or the one that has its name by now. Lets everything go and raises LockedError if it can't.

        Where there is no stream, or the file system locks no file that is open for reading, nothing is done.
        """
        path, deadline = self.run_dir / STREAM_NAME, time.monotonic() + self._retry_seconds
        if self._stream_fd >= 0 and _still_named(self._stream_fd, path):
            return
        self._drop_stream()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                os.close(fd)
                self.release()
                raise LockedError(
                    f"{self.run_dir}: another process has locked the stream, although {LOCK_NAME} was free: "
                    "it was removed or replaced under its writer",
                    self.run_dir,
                ) from None
            except OSError:
                os.close(fd)
                return
            self._stream_fd = fd
            return

    def _drop_stream(self) -> None:
        fd, self._stream_fd = self._stream_fd, -1
        if fd >= 0:
            os.close(fd)

    def leave_in_child(self) -> None:
        """Close a forked child's copies, which would keep the lock alive."""
        self._drop_stream()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def release(self) -> None:
        """Let go; harmless when done twice."""
        self._drop_stream()
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
    """Return whether a process holds the lock; None without a lock file, or where the file system can't tell.

    A writer whose lock file was removed still holds its stream.
    """
    held = _is_held(run_dir / LOCK_NAME)
    return True if held is not True and _is_held(run_dir / STREAM_NAME) else held


def _is_held(path: Path) -> bool | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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
            if os.fstat(fd).st_nlink == 1:
                return fd, created
            own_inode(path)  # a link to somebody else's file, or a backup made of links: write to neither
        os.close(fd)  # removed or replaced between open and lock


def _open(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            fd, created = os.open(path, flags), False
        except FileNotFoundError:
            fd, created = os.open(path, flags | os.O_CREAT, 0o644), True
    except OSError as error:
        raise OutputError(f"{path}: can't be opened for the lock: {error.strerror}", path) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OutputError(f"{path}: is not a regular file, and a lock is one", path)
    return fd, created


def _still_named(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def describe_holder(run_dir: Path) -> str:
    """Return who holds the lock, in words: host, pid and start, as far as the lock file says."""
    writer: dict[str, Any] = read_witness(run_dir).writer or {}
    if not writer:
        return "another process is writing here"
    return (
        f"another writer is at work here: process {writer.get('pid')} on host {writer.get('host')}, "
        f"since {writer.get('opened_at')}"
    )
