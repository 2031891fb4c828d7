"""Guard over every path that a user names for output: nothing that is somebody's truth is written over."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from eventstore.errors import UsageError
from eventstore.stream.scan import STREAM_NAME

from .directory import PARAMS_NAME, PROGRESS_NAME, RUN_INFO_NAME, RUN_LOG_NAME, is_run_dir, read_json_file
from .names import DETAILS_NAME

_OF_A_RUN = (STREAM_NAME, PARAMS_NAME, RUN_LOG_NAME, DETAILS_NAME)


def check_output_file(path: Path, *, overwrite: bool = False, is_ours: Callable[[Path], bool] | None = None) -> None:
    """Raise UsageError where a file must not be written: inside a run always, and over one that exists.

    With `overwrite` any file outside runs may be replaced, with `is_ours` one that it knows as of its own kind.
    Devices and pipes take output as ever.
    """
    real = Path(os.path.realpath(path))
    check_outside_runs(path)
    try:
        mode = os.stat(real).st_mode
    except OSError:
        return
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path}: is a folder, and a file is to be written", path)
    if not stat.S_ISREG(mode) or overwrite or real.stat().st_size == 0:
        return
    if is_ours is None:
        raise UsageError(f"{path}: is there already; --overwrite replaces it", path)
    if not is_ours(real):
        raise UsageError(f"{path}: is there already, and is not a file of this kind: name another, or remove it", path)


def check_outside_runs(path: Path) -> None:
    """Raise UsageError for a path that is a run directory, or lies inside one, links followed."""
    real = Path(os.path.realpath(path))
    for place in (real, *real.parents):
        if is_run_dir(place):
            raise UsageError(f"{path}: lies inside a run ({place}), and nothing may be written there", path)


def check_snapshot_folder(folder: Path, run_id: str | None) -> None:
    """Raise UsageError where snapshots of a run must not be written: in a run, or over those of another one.

    A folder that holds nothing of a run but earlier snapshots of the same run id may be written again.
    """
    real = Path(os.path.realpath(folder))
    check_outside_runs(real.parent)
    if any(os.path.lexists(real / name) for name in _OF_A_RUN):
        raise UsageError(f"{folder}: is a run, and its snapshots are its own; name another folder", folder)
    for name in (PROGRESS_NAME, RUN_INFO_NAME):
        stored = read_json_file(real / name)
        if os.path.lexists(stored.path) and (stored.members is None or stored.members.get("run_id") != run_id):
            raise UsageError(f"{stored.path}: is not of run {run_id}; name another folder", folder)
