"""Does the writer of a run still live? Derived, with its evidence, and never written down as a fact.

finished: the run's end is recorded. live: somebody is writing. left: its writer let it go without its end, and noted
so. dead: the writer's process is gone without a terminal event. silent: no evidence either way. damaged: the stream
can't be trusted to its end.
"""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from eventstore.stream.lock import is_locked
from eventstore.stream.lock_file import read_witness
from eventstore.stream.recovery import boot_id
from eventstore.stream.scan import STREAM_NAME

from .directory import RUN_LOG_NAME

LifeState: TypeAlias = Literal["finished", "live", "stalled", "left", "dead", "silent", "damaged"]
Reason: TypeAlias = Literal[
    "ended",
    "locked",
    "young",
    "file_open",
    "let_go",
    "released",
    "rebooted",
    "elsewhere",
    "damaged",
    "still",
    "unknown",
]
"""What the state was read from: `let_go` is its writer's note, `released` a free lock
of this host, `elsewhere` one of another machine."""
YOUNG_SECONDS = 60.0
"""Without a lock file, a stream whose file and last event are younger than this is being written."""


class Life(Struct, frozen=True):
    """Whether the writer of a run lives, and the facts that say so."""

    state: LifeState
    evidence: list[str]

    @property
    def writing(self) -> bool:
        """True where a writer lives."""
        return self.state in ("live", "stalled")


class Liveness(Struct, frozen=True):
    """A reading of a run's life, with the kind of fact that decided it."""

    state: LifeState
    evidence: list[str]
    reason: Reason

    @property
    def writing(self) -> bool:
        """True where a writer lives."""
        return self.life.writing

    @property
    def life(self) -> Life:
        """The reading as reports show it."""
        return Life(self.state, self.evidence)


def life_of(
    run_dir: Path,
    *,
    ended: str | None = None,
    damage: str | None = None,
    last_timestamp: float | None = None,
    clock: Callable[[], float] = time.time,
    open_paths: frozenset[str] | None = None,
) -> Liveness:
    """Return the life of a run, read from its end, its lock, its age and the processes of this host.

    `ended` says in words how the run's end is known, `damage` what is wrong with its stream; None for neither.
    `open_paths` is what `paths_held_open` gave, for a caller that asks about many runs.
    """
    if ended is not None:
        return Liveness("finished", [ended], "ended")
    writer = writer_of(run_dir, last_timestamp=last_timestamp, clock=clock, open_paths=open_paths)
    if writer is not None and writer.writing:
        return writer
    if damage is not None:
        return Liveness("damaged", [damage], "damaged")
    nothing = "no event was read" if last_timestamp is None else "there is no terminal event"
    return writer or Liveness("silent", [f"{nothing}, and nothing shows a writer"], "unknown")


def writer_of(
    run_dir: Path,
    *,
    last_timestamp: float | None = None,
    clock: Callable[[], float] = time.time,
    open_paths: frozenset[str] | None = None,
) -> Liveness | None:
    """Return what the lock, the age and the open files of this host say of a run's writer; None for nothing at all."""
    locked = is_locked(run_dir)
    witness = read_witness(run_dir)
    writer = witness.writer
    if locked:
        return Liveness("live", [f"the lock is held by process {(writer or {}).get('pid', '?')}"], "locked")
    if locked is False and writer is not None and witness.left_at is not None:
        where = f"process {writer.get('pid')} on host {writer.get('host')}"
        return Liveness("left", [f"{where} let the run go at {witness.left_at} without its end"], "let_go")
    if locked is False and writer is not None:
        return _judge_writer(writer)
    if _is_young(run_dir, last_timestamp, clock()):
        words = f"the stream and its last event are younger than {YOUNG_SECONDS:.0f} s"
        return Liveness("live", [words], "young")
    held = open_paths if open_paths is not None else paths_held_open()
    for name in (STREAM_NAME, RUN_LOG_NAME):
        if os.path.realpath(run_dir / name) in held:
            return Liveness("live", [f"a process of this host has {name} open"], "file_open")
    return None


def _judge_writer(writer: dict[str, Any]) -> Liveness:
    host, pid, boot = writer.get("host"), writer.get("pid"), writer.get("boot")
    where = f"process {pid} on host {host}"
    if host != socket.gethostname():
        words = f"the lock is free here, but its writer was {where}: another machine can't be asked"
        return Liveness("silent", [words], "elsewhere")
    if boot and boot != boot_id():
        words = f"the lock is free, and the machine was started again since {where} wrote"
        return Liveness("dead", [words], "rebooted")
    return Liveness("dead", [f"the lock of {where} is free: it let go, or it is gone"], "released")


def _is_young(run_dir: Path, last_timestamp: float | None, now: float) -> bool:
    try:
        changed = (run_dir / STREAM_NAME).stat().st_mtime
    except OSError:
        return False
    # A time in the future is a wrong clock or a copied run, not youth.
    return last_timestamp is not None and all(-5 < now - moment < YOUNG_SECONDS for moment in (changed, last_timestamp))


def paths_held_open() -> frozenset[str]:
    """Return real paths of files that other processes of this host have open, as far as this user may see."""
    held: set[str] = set()
    own = str(os.getpid())
    try:
        processes = [name for name in os.listdir("/proc") if name.isdigit() and name != own]
    except OSError:
        return frozenset()
    for process in processes:
        try:
            for descriptor in os.scandir(f"/proc/{process}/fd"):
                held.add(os.readlink(descriptor.path))
        except OSError:
            continue
    return frozenset(path for path in held if path.endswith((STREAM_NAME, RUN_LOG_NAME)))
