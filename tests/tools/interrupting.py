"""Processes that a test interrupts: with the default answer to Ctrl-C, and once they are where they are wanted."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 60.0


def start(argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a process that answers SIGINT as one in the foreground does, also below `nohup` and in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored here is ignored in the child
    try:
        return subprocess.Popen(argv, text=True, **options)
    finally:
        signal.signal(signal.SIGINT, before)


def wait_until(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    """Return when something holds of a process; fail when it ends before, or takes a minute."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert process.poll() is None, "it ended too soon"
        assert time.monotonic() < deadline, "it never came so far"
        time.sleep(0.005)


def has_open(process: subprocess.Popen[str], path: Path) -> bool:
    """Return whether a process has a file open."""
    names = os.listdir(f"/proc/{process.pid}/fd")
    return str(path) in (_target(f"/proc/{process.pid}/fd/{name}") for name in names)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def children(process: subprocess.Popen[str]) -> list[str]:
    """Return the ids of a process's children."""
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
