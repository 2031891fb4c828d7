"""A bell that wakes a thread: rung from an appending call, so an interrupt in the middle must not jam it."""

from contextlib import suppress
from queue import Empty, SimpleQueue


class Bell:
    """One thread waits, any others ring. A `threading.Event` would do, but for Ctrl-C: it can strike while Python code
    holds the event's lock, which is then never let go; `SimpleQueue.put` is one call into C that may be interrupted.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake the waiting thread, now or when it waits next."""
        self._rings.put(None)

    def wait(self, seconds: float) -> None:
        """Return when somebody has rung since the last call, or after `seconds`."""
        with suppress(Empty):
            self._rings.get(timeout=seconds)
            while True:
                self._rings.get_nowait()
