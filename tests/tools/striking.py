"""The command `compass-es`, interrupted wherever it imports a module or opens a file.

    python striking.py FIRST EVERY COMMAND…

At every EVERY-th place from FIRST on a copy of the process is forked and sends itself SIGINT. What did not end there
in one line and with 130 is told on stderr. The process itself is not interrupted; it tells how many copies were.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import compass_es

ENDED = (130, "interrupted\n")


class Striker:
    """The hook that forks the copies, as long as there is one thread: a copy has no others."""

    def __init__(self, first: int, every: int) -> None:
        self.first, self.every = first, every
        self.process = os.getpid()
        self.places = self.struck = 0
        self.at_work = False

    def notice(self, event: str, arguments: tuple[object, ...]) -> None:
        """Count a place, and strike when it is its turn."""
        if event not in ("import", "open") or self.at_work or os.getpid() != self.process:
            return
        self.places += 1
        if self.places >= self.first and (self.places - self.first) % self.every == 0:
            self.strike(f"{event} {arguments[0]}")

    def strike(self, place: str) -> None:
        """Interrupt a copy of this process, and tell what went wrong."""
        self.at_work = True
        if len(os.listdir("/proc/self/task")) == 1:
            self._interrupt_a_copy(place)
        self.at_work = False

    def _interrupt_a_copy(self, place: str) -> None:
        with tempfile.TemporaryFile() as told, open(os.devnull, "w") as nowhere:
            copy = os.fork()
            if copy == 0:
                os.dup2(told.fileno(), 2)
                os.dup2(nowhere.fileno(), 1)
                os.kill(os.getpid(), signal.SIGINT)
                return
            code = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
            told.seek(0)
            words = told.read().decode()
        self.struck += 1
        if (code, words) != ENDED:
            os.write(2, f"at place {self.places}, {place}: {code} {words}\n".encode())


if __name__ == "__main__":
    striker = Striker(int(sys.argv[1]), int(sys.argv[2]))
    del sys.argv[1:3]
    sys.addaudithook(striker.notice)
    try:
        compass_es.main()
    except SystemExit:
        if os.getpid() != striker.process:
            raise
        striker.strike("the end")
        os.write(2, f"{striker.struck} copies\n".encode())
        raise
