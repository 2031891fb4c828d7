"""Follow a stream while it is written: the records that came since the last look, each once and whole.

    follower = Follower(run_dir / "progress.jsonl")
    while True:
        for block in follower.read(): ...
        follower.wait(1.0)

A half line waits until its newline has come. A stream that was replaced, or cut and written anew, is read from its
front again, and `restarts` counts that: whoever folds starts over. A missing file is waited for.
"""

import io
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from eventstore.errors import InputError
from eventstore.format.chain import Chain, Link
from eventstore.format.heads import run_id_of
from eventstore.format.records import Block, Finding
from eventstore.format.seal import proves_itself, read_proof

from .line_reader import BLOCK_BYTES, after_last_newline, line_ending_at, open_regular
from .notify import Waker
from .scan import LINES_THAT_NAME, Scan

_FINGERPRINT_BYTES = 256


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
            end = after_last_newline(fd, self.position, status.st_size)
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


# -- The end of a long stream, read without what stands before it

WHOLE_BYTES = 1024 * 1024
"""A stream up to this size is read as a whole: that takes no time, and tells of every damage."""
MAX_SPAN_BYTES = 64 * 1024 * 1024
_STEP_BYTES = 64 * 1024


def last_blocks(path: Path, count: int) -> list[Block] | None:
    """Return blocks with the last `count` records of a stream, and no others.

    None where only a pass over the whole stream can tell: it is short, has damage near its end, or `count` records take
    more than `MAX_SPAN_BYTES`. Raises InputError for a stream that can't be read.
    """
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        if size <= WHOLE_BYTES:
            return None
        end = after_last_newline(fd, 0, size)
        start = _start_of_lines(fd, end, count)
        if start is None:
            return None
        run_id = run_id_of(io.BytesIO(os.pread(fd, BLOCK_BYTES, 0)).readlines()[:LINES_THAT_NAME])
        chain = _chain_before(fd, start)
    finally:
        os.close(fd)
    if run_id is None or chain is None:
        return None
    part = Scan(path, start=start, end=end, run_id=run_id, chain=chain)
    blocks = list(part.blocks())
    return blocks if part.records == part.lines.read == count and not part.verdicts else None


def _start_of_lines(fd: int, end: int, count: int) -> int | None:
    """Return where the last `count` lines before `end` begin; None where that is at the front, or too far away."""
    begin, missing = end, count + 1  # the newline before them, too
    while begin > 0 and end - begin < MAX_SPAN_BYTES:
        step = min(_STEP_BYTES, begin)
        data = os.pread(fd, step, begin - step)
        newlines = data.count(b"\n")
        if newlines >= missing:
            at = len(data)
            for _ in range(missing):
                at = data.rindex(b"\n", 0, at)
            return begin - step + at + 1
        missing -= newlines
        begin -= step
    return None


def _chain_before(fd: int, start: int) -> Chain | None:
    """Return the chain as the line that ends at `start` leaves it; None for a line that was changed."""
    line = line_ending_at(fd, start)
    proof = read_proof(line)
    if proof is None:
        return Chain()
    return Chain(Link(proof.seq, proof.xxh3)) if proves_itself(line, proof) else None
