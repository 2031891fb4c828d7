"""The states that a crash can leave at a point, as POSIX allows them.

Durable bytes and names stay. Of the changes since: any may be lost, whatever came later; a write may be there up to
any byte, with zeros, or what the disk held before, where the rest should be; a hole may be anywhere in what was not
synced. Names follow or lag behind on their own: a rename without the data, the data without the rename.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import TypeVar

from .disk import Change, File, Name, Point, Write, content_after, names_after

T = TypeVar("T")
State = dict[str, bytes]
SECTOR = 64
STALE = b'\x07{"run_id":"r","event":"task_st\n' * 64
"""What a block may hold that was used before: rubbish, halves of lines, newlines."""
_ALL_SUBSETS = 6


def state_of(point: Point, names: dict[str, int], contents: dict[int, bytes]) -> State:
    """Names to bytes; files that `contents` leaves out have all their changes."""
    return {
        name: contents[inode] if inode in contents else whole(point.files.get(inode, File()))
        for name, inode in names.items()
    }


def whole(file: File) -> bytes:
    """With all changes."""
    return content_after(file.durable, file.pending)


def cut_at(file: File, count: int, length: int, tail: str) -> bytes:
    """With the first `count` changes, and the next one up to its byte `length`; what follows is as `tail` says."""
    content = content_after(file.durable, file.pending[:count])
    torn = file.pending[count]
    if not isinstance(torn, Write):
        return content
    filled = torn.data[:length]
    rest = len(torn.data) - length
    if tail == "zeros":
        filled += b"\0" * rest
    elif tail == "stale":
        filled += STALE[:rest].ljust(rest, b"\7")
    return content_after(content, [Write(torn.offset, filled)])


def systematic(point: Point) -> Iterator[Callable[[], State]]:
    """The last change cut at every byte, in three ways; every subset of the last few changes, of data and of names.

    Each is made only when it is called for.
    """
    yield from folders(point)
    everything = names_after(point.names, point.pending_names)
    for inode, file in point.files.items():
        if not file.pending:
            continue
        last, count = file.pending[-1], len(file.pending) - 1
        if isinstance(last, Write):
            for length in range(len(last.data)):
                for tail in ("cut", "zeros", "stale"):
                    yield partial(_torn_state, point, everything, inode, count, length, tail)
        for changes in _subsets(file.pending):
            yield partial(_changed_state, point, everything, inode, changes)


def folders(point: Point) -> Iterator[Callable[[], State]]:
    """Every subset of the last few changes of names, with all of the data, and with none that wasn't synced."""
    nothing = {inode: file.durable for inode, file in point.files.items()}
    for kept in _subsets(point.pending_names):
        names = names_after(point.names, kept)
        yield partial(state_of, point, names, {})
        yield partial(state_of, point, names, nothing)


def _torn_state(point: Point, names: dict[str, int], inode: int, count: int, length: int, tail: str) -> State:
    return state_of(point, names, {inode: cut_at(point.files[inode], count, length, tail)})


def _changed_state(point: Point, names: dict[str, int], inode: int, changes: list[Change]) -> State:
    return state_of(point, names, {inode: content_after(point.files[inode].durable, changes)})


def _subsets(changes: tuple[T, ...]) -> Iterator[list[T]]:
    recent = changes[-_ALL_SUBSETS:]
    earlier = list(changes[:-_ALL_SUBSETS])
    for size in range(len(recent) + 1):
        for kept in combinations(recent, size):
            yield [*earlier, *kept]


def at_random(point: Point, rng: random.Random) -> State:
    """One state, everything left to chance."""
    names = names_after(point.names, _some_names(point.pending_names, rng))
    contents = {inode: some_content(file, rng) for inode, file in point.files.items() if file.pending}
    return state_of(point, names, contents)


def _some_names(changes: tuple[Name, ...], rng: random.Random) -> list[Name]:
    if rng.random() < 0.5:
        return list(changes[: rng.randint(0, len(changes))])
    return [change for change in changes if rng.random() < 0.6]


def some_content(file: File, rng: random.Random) -> bytes:
    """One thing that may be in a file with changes that are not synced."""
    pending = file.pending
    choice = rng.random()
    if choice < 0.1:
        return whole(file)
    if choice < 0.2:
        return file.durable
    if choice < 0.5:
        count = rng.randrange(len(pending))
        torn = pending[count]
        length = rng.randrange(len(torn.data) + 1) if isinstance(torn, Write) and torn.data else 0
        return cut_at(file, count, length, rng.choice(("cut", "zeros", "stale")))
    if choice < 0.8:
        kept = [_torn(change, rng) for change in pending if rng.random() < 0.6]
        if rng.random() < 0.3:
            rng.shuffle(kept)
        return content_after(file.durable, kept)
    return _with_holes(file, rng)


def _torn(change: Change, rng: random.Random) -> Change:
    if isinstance(change, Write) and rng.random() < 0.2:
        return Write(change.offset, change.data[: rng.randrange(len(change.data) + 1)])
    return change


def _with_holes(file: File, rng: random.Random) -> bytes:
    """Some sectors of what was written hold what they held before, or zeros."""
    content, before = bytearray(whole(file)), file.durable
    for _ in range(rng.randint(1, 3)):
        write = rng.choice(file.pending)
        if not isinstance(write, Write) or not write.data:
            continue
        start = (write.offset + rng.randrange(len(write.data))) // SECTOR * SECTOR
        end = min(start + SECTOR, write.offset + len(write.data), len(content))
        start = max(start, write.offset)
        old = before[start:end].ljust(max(0, end - start), b"\0")
        content[start:end] = old
    return bytes(content)
