"""Does the writer of a run still live? Derived, with its evidence, and never written down as a fact.

finished: the stream has a terminal event. live: somebody is writing. dead: the writer's process is gone without a
terminal event. silent: no evidence either way. damaged: the stream can't be trusted to its end.
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

LifeName: TypeAlias = Literal["finished", "live", "stalled", "dead", "silent", "damaged"]
YOUNG_SECONDS = 60.0
"""Without a lock file, a stream whose file and last event are younger than this is being written."""


class Life(Struct, frozen=True):
    """What is known of a run's life, and from what."""

    name: LifeName
    evidence: list[str]

    @property
    def writing(self) -> bool:
        """Whether a writer lives."""
        return self.name in ("live", "stalled")


def life_of(
    run_dir: Path,
    *,
    finished: bool,
    damaged: bool = False,
    last_timestamp: float | None = None,
    clock: Callable[[], float] = time.time,
    open_paths: frozenset[str] | None = None,
) -> Life:
    """The life of a run from its terminal event, its lock, its age and the processes of this host.

    `open_paths` is what `paths_held_open` gave, for a caller that asks about many runs.
    """
    if finished:
        return Life("finished", ["the stream has a terminal event"])
    writer = _writer_evidence(run_dir, last_timestamp, clock, open_paths)
    if writer is not None and writer.name == "live":
        return writer
    if damaged:
        return Life("damaged", ["the stream is damaged"])
    return writer or Life("silent", ["no terminal event, and nothing shows a writer"])


def _writer_evidence(
    run_dir: Path, last_timestamp: float | None, clock: Callable[[], float], open_paths: frozenset[str] | None
) -> Life | None:
    locked = is_locked(run_dir)
    writer = read_witness(run_dir).writer
    if locked:
        return Life("live", [f"the lock is held by process {(writer or {}).get('pid', '?')}"])
    if locked is False and writer is not None:
        return _judge_writer(writer)
    if _is_young(run_dir, last_timestamp, clock()):
        return Life("live", [f"the stream and its last event are younger than {YOUNG_SECONDS:.0f} s"])
    held = open_paths if open_paths is not None else paths_held_open()
    for name in (STREAM_NAME, RUN_LOG_NAME):
        if os.path.realpath(run_dir / name) in held:
            return Life("live", [f"a process of this host has {name} open"])
    return None


def _judge_writer(writer: dict[str, Any]) -> Life:
    host, pid, boot = writer.get("host"), writer.get("pid"), writer.get("boot")
    where = f"process {pid} on host {host}"
    if host != socket.gethostname():
        return Life("silent", [f"the lock is free here, but its writer was {where}: another machine can't be asked"])
    if boot and boot != boot_id():
        return Life("dead", [f"the lock is free, and the machine was started again since {where} wrote"])
    return Life("dead", [f"the lock of {where} is free: it let go, or it is gone"])


def _is_young(run_dir: Path, last_timestamp: float | None, now: float) -> bool:
    try:
        changed = (run_dir / STREAM_NAME).stat().st_mtime
    except OSError:
        return False
    # A time in the future is a wrong clock or a copied run, not youth.
    return last_timestamp is not None and all(-5 < now - moment < YOUNG_SECONDS for moment in (changed, last_timestamp))


def paths_held_open() -> frozenset[str]:
    """Real paths of files that other processes of this host have open, as far as this user may see."""
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
