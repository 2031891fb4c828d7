"""Processes that read runs for a large first build.

Each is a new interpreter that gets chunks by its standard input. The pools of the standard library would run the
caller's main module once more in each of them, which ends badly for a script or a notebook that builds a history.
"""

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from eventstore.errors import OutputError

_OWN_FOLDER = str(Path(__file__).parents[3])
_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
import eventstore, projections
del sys.path[0]
from eventstore.history.catalog.workers import serve
serve()
"""
"""The folder of our own packages comes first while they are found, so that no other `eventstore` takes their place."""


class Readers:
    """`count` processes; `submit` gives one of them a call of `work`. They go with the block."""

    def __init__(self, count: int, work: Callable[..., Any]) -> None:
        self._work = work
        self._threads = ThreadPoolExecutor(count)
        self._own = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Readers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for process in self._processes:
                process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()  # the end of its input is the end of it

    def submit(self, *arguments: Any) -> Future[Any]:
        """The future result of `work(*arguments)`. Raises what it raised, OutputError if its process was killed."""
        return self._threads.submit(self._call, arguments)

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        process = getattr(self._own, "process", None) or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            pickle.dump((self._work, arguments), process.stdin)
            process.stdin.flush()
            done, result = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise OutputError("a process that reads runs was killed; was there too little memory?") from None
        if not done:
            raise result
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                _PROGRAM,
                _OWN_FOLDER,
                *sys.path,
            ],  # -P: nothing is imported from the folder we stand in
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is the parent's to answer
        )
        self._own.process = process
        self._processes.append(process)
        return process


def serve() -> None:
    """Answer calls from standard input on standard output until there are no more, or nobody listens."""
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            work, arguments = pickle.load(calls)
        except EOFError:
            return
        try:
            answer = (True, work(*arguments))
        except Exception as error:
            answer = (False, error)
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:
            return
