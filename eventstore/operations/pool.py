"""Work on many things in several processes, in order."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def map_in_order(work: Callable[[S], T], items: Sequence[S], processes: int) -> Iterator[T]:
    """Yield `work` of each item, in the order of the items; `work` and what it gives must be picklable."""
    if processes <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    context = multiprocessing.get_context("fork")
    with context.Pool(min(processes, len(items)), _leave_interrupts_to_the_parent) as pool:
        yield from pool.imap(work, items, chunksize=max(1, min(16, len(items) // (4 * processes))))


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
