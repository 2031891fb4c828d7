"""Runs and moments as people name them: `RUN`, `RUN@EVENT`, and a task by any part of its id that is unique."""

import os
from pathlib import Path

from eventstore.errors import InputError, UsageError
from eventstore.run.directory import open_run
from eventstore.stream.moment import Moment

__all__ = ["Moment", "match_task", "open_moment"]

SHOWN_CANDIDATES = 20


def open_moment(text: str | os.PathLike[str]) -> tuple[Path, Moment | None]:
    """The run directory, and after `@` how many events of it count. A path that has an `@` of its own comes first."""
    path = Path(text)
    if path.exists():
        return open_run(path), None
    name, at, number = str(text).rpartition("@")
    if at and number.isdigit() and len(number) < 19:
        return open_run(name), Moment(events=int(number))
    return open_run(path), None


def match_task(wanted: str, task_ids: list[str], run_dir: Path) -> str:
    """The one task id that is, or holds, `wanted`. Raises UsageError with the candidates where there is not just one.

    Raises InputError where the run has no task at all.
    """
    if wanted in task_ids:
        return wanted
    if not task_ids:
        raise InputError(f"{run_dir}: no task is recorded in it", run_dir)
    exactly = [name for name in task_ids if wanted in name]
    for found in (exactly, [name for name in task_ids if wanted.lower() in name.lower()]):
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(repr(name[:80]) for name in found[:SHOWN_CANDIDATES])
            more = f", and {len(found) - SHOWN_CANDIDATES} more" if len(found) > SHOWN_CANDIDATES else ""
            raise UsageError(f"{wanted!r} is part of {len(found)} task ids: {shown}{more}", run_dir)
    raise UsageError(f"no task id of this run has {wanted!r} in it", run_dir)
