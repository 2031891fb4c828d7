"""Shared fsyncs: one leader syncs for everybody who has written so far, the others wait for it. No timer.

Whoever needs the disk to have its line asks for a position. If no fsync is under way the caller becomes the leader and
does one; if one is, the caller waits, and afterwards either is covered or leads the next, which covers all that were
written meanwhile. So the number of fsyncs follows the disk, not the callers.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from .wakeup import Bell

if TYPE_CHECKING:  # it costs start-up time, and a caller of `future` has loaded it
    import asyncio

Durability: TypeAlias = Literal["always", "group", "os"]

GROUP_SECONDS = 0.04
"""How long `group` gathers before its fsync; with the fsync itself at most 50 ms on a disk that keeps up."""

_LOOK_SECONDS = 1.0
"""How often the background thread looks by itself: an interrupt may have swallowed the call that should wake it."""


class Position(NamedTuple):
    """A place between two lines: bytes before it, the number and digest of the last line (-1 and "" before any)."""

    bytes: int
    seq: int
    xxh3: str


class Syncer:
    """Leader, followers, and the background thread that syncs for `group` and for callers in an event loop.

    `position()` tells how far the stream is written; `sync(position)` makes that durable, or raises and must then
    raise for ever.
    """

    def __init__(self, position: Callable[[], Position], sync: Callable[[Position], None]) -> None:
        self._position, self._sync = position, sync
        self._mutex = threading.Lock()
        self._turn = threading.Condition(self._mutex)
        self._leading = False
        self.synced_bytes = 0
        self._wake = Bell()
        self._closing = False
        self._gather = False
        self._thread: threading.Thread | None = None
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._called: set[asyncio.AbstractEventLoop] = set()
        self.dirty = False
        """Whether the background thread already knows of lines to sync; the appending side looks before it asks."""

    # -- callers that can wait

    def wait_for(self, target: int) -> None:
        """Return when the first `target` bytes are durable."""
        turn, leads = self._turn, False
        try:
            with self._mutex:  # not the condition's own `with`: an interrupt in it could keep the lock for ever
                while self._leading and self.synced_bytes < target:
                    turn.wait()
                if self.synced_bytes >= target:
                    return
                self._leading = leads = True
            self._lead()
        finally:
            if leads:  # also when an interrupt strikes: nobody else would ever lead again
                with self._mutex:
                    self._leading = False
                    turn.notify_all()

    def _lead(self) -> None:
        position = self._position()
        self._sync(position)
        self.synced_bytes = max(self.synced_bytes, position.bytes)

    # -- the background thread

    def start(self) -> None:
        """Start the background thread, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="compass-es sync", daemon=True)
            self._thread.start()

    def request(self) -> None:
        """Ask for an fsync soon, for `group`."""
        self.dirty = True
        self._gather = True
        self._wake.ring()

    def future(self) -> "asyncio.Future[None]":
        """A future that is done when everything written up to now is durable; to be awaited in the running loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self.start()
        self._waiters.append((loop, future))
        if loop not in self._called:
            # Not at once: every task that is ready in this turn of the loop shall be in the same fsync.
            self._called.add(loop)
            loop.call_soon(self._call_up, loop)
        return future

    def _call_up(self, loop: "asyncio.AbstractEventLoop") -> None:
        self._called.discard(loop)
        self._wake.ring()

    def close(self) -> None:
        """Stop the background thread after a last round for those who still wait."""
        self._closing = True
        self._wake.ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_LOOK_SECONDS)
            if not (self.dirty or self._waiters or self._closing):
                continue
            if self._gather and not self._waiters and not self._closing:
                self._pause()
            self._gather = self.dirty = False
            self._round()
        self._round()

    def _pause(self) -> None:
        end = time.monotonic() + GROUP_SECONDS
        while (left := end - time.monotonic()) > 0 and not self._waiters and not self._closing:
            self._wake.wait(left)

    def _round(self) -> None:
        waiters, self._waiters = self._waiters, []
        problem: BaseException | None = None
        try:
            self.wait_for(self._position().bytes)
        except Exception as error:  # whoever appends next is told; there is nobody to tell here
            problem = error
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
        for loop, future in waiters:
            by_loop[loop].append(future)
        for loop, futures in by_loop.items():
            try:
                loop.call_soon_threadsafe(_settle, futures, problem)
            except RuntimeError:  # that loop is closed: nobody waits there any more
                continue


def _settle(futures: "list[asyncio.Future[None]]", problem: BaseException | None) -> None:
    for future in futures:
        if future.done():
            continue
        if problem is None:
            future.set_result(None)
        else:
            future.set_exception(problem)
