"""Folding a long stream on two processes: the second half is folded beside the first, then joined to it.

The answer is exactly that of one process: the second half is taken only as far as every line of it is sound and its
events don't depend on what came before; the rest is folded after the join (tests/operations/test_parallel.py).
"""

import os
import pickle
import threading
from pathlib import Path

from eventstore.format.chain import Chain, Link
from eventstore.format.seal import read_proof
from eventstore.stream.line_reader import line_ending_at
from eventstore.stream.scan import CleanPart, Scan
from projections import Base, Snapshots
from projections.snapshots import parallel, replay

MIN_BYTES = 48 * 1024 * 1024
"""Below this, a second process costs more than it saves."""


def replay_stream(stream: Scan, base: Base) -> Snapshots:
    """Return `projections.replay` of a scan, on two processes where that helps."""
    return replay.snapshots(fold_stream(stream, base))


def fold_stream(stream: Scan, base: Base) -> replay.State:
    """Return the state of `projections.snapshots.replay` after a scan, on two processes where that helps."""
    state = replay.initial(base)
    middle = _middle(stream.path, stream.bytes) if _worth_while(stream.bytes) else None
    if middle is None:
        for block in stream.blocks():
            replay.apply_block(state, block)
        return state
    pid, pipe = _start_part(stream.path, *middle, stream.bytes)
    try:
        for block in stream.blocks_until(middle[0]):
            replay.apply_block(state, block)
        found = _read_part(pid, pipe)
        if found is not None and _follows(stream, middle[1]) and parallel.joins(state, found[1]):
            stream.absorb(found[0])
            parallel.join(state, found[1])
        for block in stream.blocks_until(stream.bytes):
            replay.apply_block(state, block)
        stream.finish()
    finally:
        stream.close()
    return state


def _worth_while(size: int) -> bool:
    # A process with threads must not fork: one of them may hold a lock that the child would wait for.
    return size >= MIN_BYTES and len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


def _middle(path: Path, size: int) -> tuple[int, Link | None] | None:
    """Return a line's beginning near the middle, and the proof of the line before it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        ahead = os.pread(fd, 1024 * 1024, size // 2)
        newline = ahead.find(b"\n") + 1
        if not newline:
            return None
        middle = size // 2 + newline
        proof = read_proof(line_ending_at(fd, middle))
        return middle, None if proof is None else Link(proof.seq, proof.xxh3)
    finally:
        os.close(fd)


def _follows(stream: Scan, link: Link | None) -> bool:
    """Return whether the first half ended as the second process took for granted."""
    return stream.chain.last == link and stream.chain.settled


def _start_part(path: Path, start: int, link: Link | None, end: int) -> tuple[int, int]:
    """Fold the bytes from `start` in a child; its process id, and the pipe with its answer."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writable)
        return pid, readable
    code = 1
    try:
        with os.fdopen(writable, "wb") as answer:
            pickle.dump(_fold_part(path, start, link, end), answer, protocol=5)
        code = 0
    finally:
        os._exit(code)


def _fold_part(path: Path, start: int, link: Link | None, end: int) -> tuple[CleanPart, parallel.Part]:
    stream = Scan(path, start=start, end=end, run_id=_run_id(path), chain=Chain(link))
    state = parallel.initial()
    recounted, clean = False, CleanPart(0, start, link)
    for block in stream.clean_blocks():
        if not parallel.can_fold(block):
            break
        recounted = recounted or parallel.recounts(block)
        replay.apply_block(state, block)
        length = sum(map(len, block.lines))
        clean = CleanPart(clean.records + len(block.heads), block.offset + length, stream.chain.last)
    return clean, parallel.part_of(state, recounted)


def _run_id(path: Path) -> str | None:
    first = Scan(path)
    next(iter(first.blocks()), None)
    return first.run_id


def _read_part(pid: int, pipe: int) -> tuple[CleanPart, parallel.Part] | None:
    """Return the child's answer, or None if it died: then its half is folded here."""
    with os.fdopen(pipe, "rb") as answer:
        content = answer.read()
    _, status = os.waitpid(pid, 0)
    if status:
        return None
    part: tuple[CleanPart, parallel.Part] = pickle.loads(content)
    return part
