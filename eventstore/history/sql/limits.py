"""A process of its own for SQL that nobody vouches for: limits on memory and time that hold whatever the SQL does.

DuckDB's memory limit is none for one big function call, and neither its interrupt nor its timeout is seen inside one.
The kernel's limits are: an allocation beyond RLIMIT_AS fails, and a process past its deadline is killed.
"""

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from eventstore.errors import CompassError, UsageError

HEADROOM_BYTES = 1 << 30
"""Address space that a DuckDB process needs beside its memory limit: code, thread stacks, arenas."""
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


class LimitError(CompassError):
    """The SQL needed more time or memory than it was allowed."""

    kind = "limit"


class BrokenDownError(LimitError):
    """The process that ran the SQL was ended by a signal that nobody sent: too much memory, or a damaged catalog."""


def memory_bytes(words: str) -> int:
    """`2GB`, `512MiB` as bytes. Raises UsageError."""
    number = words.strip().rstrip("BbIiKkMmGg ")
    unit = words.strip()[len(number) :].strip().upper()
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise UsageError(f"{words!r} is no amount of memory; write 2GB or 512MB") from None
    if size < 32 * 10**6:
        raise UsageError(f"{words} of memory is too little; 32MB is the least")
    return size


def run_limited(work: Callable[[Callable[[], None]], int], *, timeout_seconds: float, memory: int) -> int:
    """Do `work` in a child process and return its exit code.

    `work` is given a function that it calls right before the SQL runs: limits hold, and the clock runs, from then on.
    Raises LimitError when the time is up, BrokenDownError when the process broke down, KeyboardInterrupt when this one
    is interrupted.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_child(work, writing, timeout_seconds, memory)
    os.close(writing)
    try:
        in_time = _wait(reading, timeout_seconds)
    except BaseException:
        _kill(child)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(reading)
    if not in_time:
        _kill(child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not in_time or code == -signal.SIGXCPU:
        raise LimitError(f"the time is up: the SQL ran longer than {timeout_seconds:g} s; see --timeout")
    if code < 0:
        raise BrokenDownError(f"the process that ran the SQL broke down (signal {-code}); did it need too much memory?")
    return code


def _be_child(work: Callable[[Callable[[], None]], int], writing: int, timeout_seconds: float, memory: int) -> None:
    def begin() -> None:
        _limit(timeout_seconds, memory)
        os.write(writing, b"!")

    code = 1
    try:
        code = work(begin)
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except KeyboardInterrupt:
        code = 130
    finally:
        os._exit(code)  # nothing of the parent's is to be tidied up here


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
    """Whether the child ended before its deadline; the clock starts with its first byte."""
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
