"""A process of its own for SQL that nobody vouches for: limits on memory and time that hold whatever the SQL does.

DuckDB's memory limit is none for one big function call, and neither its interrupt nor its timeout is seen inside one.
The kernel's limits are: an allocation beyond RLIMIT_AS fails, and a process past its deadline is killed.
"""

import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from eventstore.errors import CompassError, UsageError

HEADROOM_BYTES = 1 << 30
"""Address space that a DuckDB process needs beside its memory limit: code, thread stacks, arenas."""
MAX_SPILLED_BYTES = 16 * 10**9
"""What one question may put into temporary files: DuckDB's own, and the rows of a Parquet file to come."""
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


class LimitError(CompassError):
    """The SQL needed more time or memory than it was allowed."""

    kind = "limit"


class BrokenDownError(LimitError):
    """The process that ran the SQL was ended by a signal that nobody sent: too much memory, or a damaged catalog."""


def memory_bytes(words: str) -> int:
    """Return `2GB`, `512MiB` as bytes. Raises UsageError."""
    number = words.strip().rstrip("BbIiKkMmGg ")
    unit = words.strip()[len(number) :].strip().upper()
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise UsageError(f"{words!r} is no amount of memory; write 2GB or 512MB") from None
    if size < 32 * 10**6:
        raise UsageError(f"{words} of memory is too little; 32MB is the least")
    return size


Work: TypeAlias = Callable[[Callable[[], None]], int]
"""What is done in the child: it calls its argument right before the SQL runs, and returns an exit code."""


def run_limited(
    work: Work,
    *,
    timeout_seconds: float,
    memory: int,
    on_error: Callable[[BaseException], int] | None = None,
    after: Callable[[int], None] = lambda _: None,
) -> int:
    """Do `work` in a child process and return its exit code.

    Limits hold, and the clock runs, from the moment at which the work calls its argument. Temporary files of the child
    are in a folder of its own, which is gone afterwards, whatever ended the child. The child ends with its parent.
    `on_error` is called in the child with what the work raises, and returns the exit code; `after` is called here with
    the number of the child's process when that has ended. Raises LimitError when the
    time is up, BrokenDownError when the process broke down, KeyboardInterrupt when this one is interrupted.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryDirectory(prefix="compass-es-query-", ignore_cleanup_errors=True) as folder:
        pipes = _Pipes(os.pipe(), os.pipe())
        child = os.fork()
        if child == 0:
            pipes.keep_child()
            _be_child(work, pipes, folder, timeout_seconds, memory, on_error)
        pipes.keep_parent()
        try:
            return _await(child, pipes, timeout_seconds)
        finally:
            after(child)


class _Pipes(Struct, frozen=True):
    """`begun` tells the parent that the SQL runs, and by its end that the child has ended; `parent` ends with it."""

    begun: tuple[int, int]
    parent: tuple[int, int]

    def keep_child(self) -> None:
        """Close the parent's ends."""
        os.close(self.begun[0])
        os.close(self.parent[1])

    def keep_parent(self) -> None:
        """Close the child's ends."""
        os.close(self.begun[1])
        os.close(self.parent[0])


def _await(child: int, pipes: _Pipes, timeout_seconds: float) -> int:
    try:
        in_time = _wait(pipes.begun[0], timeout_seconds)
    except BaseException:
        _kill(child)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(pipes.begun[0])
        os.close(pipes.parent[1])
    if not in_time:
        _kill(child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not in_time or code == -signal.SIGXCPU:
        raise LimitError(f"the time is up: the SQL ran longer than {timeout_seconds:g} s; see --timeout")
    if code < 0:
        raise BrokenDownError(f"the process that ran the SQL broke down (signal {-code}); did it need too much memory?")
    return code


def _be_child(
    work: Work,
    pipes: _Pipes,
    folder: str,
    timeout_seconds: float,
    memory: int,
    on_error: Callable[[BaseException], int] | None,
) -> None:
    def begin() -> None:
        _limit(timeout_seconds, memory)
        os.write(pipes.begun[1], b"!")

    code = 1
    try:
        tempfile.tempdir = folder
        threading.Thread(target=_end_with_parent, args=(pipes.parent[0], folder), daemon=True).start()
        code = work(begin)
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        code = _report(error, on_error)
    finally:
        os._exit(code)  # nothing of the parent's is to be tidied up here


def _report(error: BaseException, on_error: Callable[[BaseException], int] | None) -> int:
    """Return the exit code for an error; without anybody to word it, it is printed as Python does."""
    if on_error is not None:
        return on_error(error)
    traceback.print_exception(error)
    return 1


def _end_with_parent(reading: int, folder: str) -> None:
    """Wait for the end of the parent, however it comes; then nobody needs the answer, and nobody else tidies up."""
    os.read(reading, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _limit(timeout_seconds: float, memory: int) -> None:
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        space = pages * resource.getpagesize() + memory + HEADROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
    with suppress(OSError, ValueError):
        cores = os.cpu_count() or 1
        seconds = int(time.process_time() + timeout_seconds * cores) + 10
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _wait(reading: int, timeout_seconds: float) -> bool:
    """Return whether the child ended before its deadline; the clock starts with its first byte."""
    deadline: float | None = None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([reading], [], [], left)
        if not ready:
            return False
        if not os.read(reading, 16):
            return True
        deadline = time.monotonic() + timeout_seconds + 1  # DuckDB's own timeout, if it has one, words it better


def _kill(child: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
