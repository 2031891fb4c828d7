"""Intents: what a publication is about to do, written down before, so that a crash can be finished.

`details/.publish-<digest>.json` says which task goes to which state, and for a task that is replaced, in which staging
folder its new form waits. It is removed when the move is done.
"""

import ctypes
import os
import time
from pathlib import Path

from msgspec import Struct

from eventstore.format.codec import dump_pretty
from eventstore.run.json_files import read_members
from eventstore.run.names import TASK_STATES, is_leftover
from eventstore.stream.atomic_file import replace_file
from eventstore.stream.filesystem import FileSystem

from .tree_copy import remove_tree

INTENT_PREFIX = ".publish-"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Intent(Struct, frozen=True):
    """A task's folder name and the state it goes to. `staging` and `inode` name a new form that replaces the task that
    stands in `old_state` (None: layout v2)."""

    name: str
    state: str
    staging: str | None = None
    inode: int = 0
    old_state: str | None = None


def write_intent(details: Path, intent: Intent, *, durable: bool, files: FileSystem) -> Path:
    """Write an intent below `details/`; its path."""
    path = details / f"{INTENT_PREFIX}{intent.name.rpartition('--')[2][:32]}.json"
    members = {name: getattr(intent, name) for name in Intent.__struct_fields__} | {"at": time.time()}
    replace_file(path, dump_pretty(members, sort_keys=False), durable=durable, files=files)
    return path


def read_intents(details: Path) -> list[tuple[Path, Intent]]:
    """Return every intent that can be read and trusted; others are leftovers."""
    found = []
    for path in sorted(details.glob(f"{INTENT_PREFIX}*.json")) if details.is_dir() else []:
        values = read_members(path, tuple(Intent.__struct_fields__), 1 << 20).values
        name, state, staging, old = (values.get(key) for key in ("name", "state", "staging", "old_state"))
        inode = values.get("inode")
        staged = staging is None or (_is_plain(staging) and str(staging).startswith(INTENT_PREFIX))
        trusted = _is_plain(name) and state in TASK_STATES and (old is None or old in TASK_STATES)
        if trusted and staged and type(inode) is int:
            found.append((path, Intent(str(name), str(state), staging, inode, old)))
    return found


def loose_ends(details: Path) -> list[Path]:
    """Return leftovers that stand among tasks: staging folders whose intent was never written, temporary files."""
    folders = [details, *(details / state for state in TASK_STATES)]
    real = [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]
    return sorted(path for folder in real for path in folder.iterdir() if is_leftover(path.name))


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and bool(name) and "/" not in name and name not in (".", "..") and "\0" not in name


def swap_in(details: Path, intent: Intent, *, files: FileSystem) -> None:
    """Put a task's new form in the old one's place: by one exchange where both have the same place, else the new one
    first. Done again after a crash, it finishes."""
    staging = details / str(intent.staging)
    new, target = staging / intent.name, details / intent.state / intent.name
    old = details / intent.old_state / intent.name if intent.old_state else details / intent.name
    if new.is_dir() and new.stat().st_ino == intent.inode:
        if not target.exists():
            files.replace(new, target)
        elif not exchange(new, target):
            files.replace(target, staging / "old")
            files.replace(new, target)
        files.sync_folder(target.parent)
    if old != target and old.exists():
        files.replace(old, staging / "old")
        files.sync_folder(old.parent)
    if staging.exists():
        remove_tree(staging)


def exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step; False where the system or the file system can't."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    paths = os.fsencode(first), os.fsencode(second)
    return bool(renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0)
