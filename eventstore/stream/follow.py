"""Follow a stream while it is written: the records that came since the last look, each once and whole.

    follower = Follower(run_dir / "progress.jsonl")
    while True:
        for block in follower.read(): ...
        follower.wait(1.0)

A half line waits until its newline has come. A stream that was replaced, or cut and written anew, is read from its
front again, and `restarts` counts that: whoever folds starts over. A missing file is waited for.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from eventstore.errors import InputError
from eventstore.format.chain import Chain
from eventstore.format.records import Block, Finding

from .line_reader import open_regular
from .notify import Waker
from .scan import Scan

_FINGERPRINT_BYTES = 256
_STEP_BYTES = 1 << 20


class Follower:
    """Reads a growing stream. `position` is the byte after the last whole line read, `records` how many came so far.

    `problem` says in words why the stream can't be read at the moment, None where it can.
    """

    def __init__(self, path: Path, waker: Waker | None = None) -> None:
        self.path = path
        self.restarts = 0
        self.problem: str | None = None
        self.verdicts: Counter[str] = Counter()
        self.new_findings: list[Finding] = []
        self._waker = waker
        self._forget()

    def _forget(self) -> None:
        self.position = self.records = self.lines = 0
        self.run_id: str | None = None
        self._chain = Chain()
        self._identity: tuple[int, int] | None = None
        self._last_bytes = b""
        self.verdicts.clear()

    def read(self) -> Iterator[Block]:
        """Yield what is new, in file order. A look at a stream that can't be read yields nothing and sets `problem`."""
        self.new_findings = []
        try:
            fd = open_regular(self.path)
        except InputError as error:
            self.problem = error.message
            return
        try:
            self.problem = None
            status = os.fstat(fd)
            identity = (status.st_dev, status.st_ino)
            if self._identity is not None and not self._is_same(fd, identity, status.st_size):
                self._forget()
                self.restarts += 1
            self._identity = identity
            end = _after_last_newline(fd, self.position, status.st_size)
        finally:
            os.close(fd)
        if end > self.position:
            yield from self._read_until(end)

    def _is_same(self, fd: int, identity: tuple[int, int], size: int) -> bool:
        """Return the file that was read before, with what was read still in it."""
        if identity != self._identity or size < self.position:
            return False
        known = self._last_bytes
        return os.pread(fd, len(known), self.position - len(known)) == known

    def _read_until(self, end: int) -> Iterator[Block]:
        try:
            part = Scan(self.path, start=self.position, end=end, run_id=self.run_id, chain=self._chain)
        except InputError as error:
            self.problem = error.message
            return
        part.records, part.lines.read = self.records, self.lines
        try:
            yield from part.blocks_until(end)
        except InputError as error:
            self.problem = error.message
        finally:
            part.close()
        self._remember(part, end)

    def _remember(self, part: Scan, end: int) -> None:
        self.position, self.run_id = end, part.run_id
        self.records, self.lines = part.records, part.lines.read
        self.verdicts.update(part.verdicts)
        self.new_findings = part.findings
        try:
            fd = open_regular(self.path)
        except InputError:
            return
        try:
            start = max(0, end - _FINGERPRINT_BYTES)
            self._last_bytes = os.pread(fd, end - start, start)
        finally:
            os.close(fd)

    def wait(self, seconds: float) -> bool:
        """Wait until something in the run's folder changes, at most so long."""
        if self._waker is None:
            self._waker = Waker()
        self._waker.watch(self.path.parent)
        return self._waker.wait(seconds)


def _after_last_newline(fd: int, start: int, size: int) -> int:
    """Return the byte after the last newline in [start, size), or `start` where there is none."""
    end = size
    while end > start:
        begin = max(start, end - _STEP_BYTES)
        found = os.pread(fd, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return start
