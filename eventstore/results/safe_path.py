"""Paths that stand in records, made into paths on disk only where they stay inside their owner's folder."""

import os
from pathlib import Path, PurePosixPath

from eventstore.errors import RefusedError


def relative_path(value: object, what: str = "path") -> PurePosixPath:
    """A stored relative POSIX path. Raises RefusedError for anything absolute, empty, or with `..`, NUL or `\\`."""
    if not isinstance(value, str) or not value or "\0" in value or "\\" in value:
        raise RefusedError(f"{what} {_short(value)} is no relative POSIX path")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise RefusedError(f"{what} {_short(value)} leads out of its folder")
    return path


def inside(root: Path, value: object, what: str = "path") -> Path:
    """Return `root / value` for a stored relative path, provided that no link stands on the way. Need not exist.

    Raises RefusedError where a link does.
    """
    path = root
    for part in relative_path(value, what).parts:
        path = path / part
        if os.path.islink(path):
            raise RefusedError(f"{path}: is a symbolic link, and {what} must not lead through one", path)
    return path


def sandbox_path(value: object) -> str:
    """An absolute POSIX path inside a sandbox, normal form. Raises RefusedError for the root, `..`, `//`, NUL, `\\`."""
    if not isinstance(value, str) or "\0" in value or "\\" in value:
        raise RefusedError(f"artifact source {_short(value)} is no absolute POSIX path")
    path = PurePosixPath(value)
    if not path.is_absolute() or value.startswith("//") or ".." in path.parts or len(path.parts) < 2:
        raise RefusedError(f"artifact source {_short(value)} must be absolute, not the root, and without '..'")
    return str(path)


def is_real_folder(path: Path) -> bool:
    """Return whether a folder is there that is no link."""
    return not os.path.islink(path) and os.path.isdir(path)


def _short(value: object) -> str:
    return repr(value)[:120]
