"""Small files that are replaced whole: a reader sees the old content or the new, never half of one."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from eventstore.errors import OutputError

from .filesystem import REAL, FileSystem

TEMPORARY_PREFIX = ".tmp."
_COPY_BYTES = 1 << 20


def replace_file(path: Path, content: bytes, *, durable: bool, files: FileSystem = REAL, new_mode: int = 0o644) -> None:
    """Replace `path` by rename; its mode stays, a new file gets `new_mode`. `durable` syncs the file, then the folder.

    Raises OutputError, and leaves what was there, if that can't be done.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}.{secrets.token_hex(8)}")
    try:
        mode = path.stat().st_mode & 0o7777 if path.exists() else new_mode
        fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            files.write_all(fd, content)
            if durable:
                files.fsync(fd)
        finally:
            files.close(fd)
        files.replace(temporary, path)
        if durable:
            files.sync_folder(path.parent)  # without it the rename itself can be lost
    except OSError as error:
        with suppress(OSError):
            files.unlink(temporary)
        raise OutputError(f"{path}: can't be written: {error.strerror}", path) from None


def mode_of(path: Path, default: int = 0o644) -> int:
    """Return who may read and write a file, for files made from it; `default` where it is not a regular file."""
    try:
        found = path.lstat().st_mode
    except OSError:
        return default
    return found & 0o666 if stat.S_ISREG(found) else default


def own_inode(path: Path, files: FileSystem = REAL) -> None:
    """Give a regular file that has a second name an inode of its own; the other name keeps its bytes and its inode.

    A file about to be written in place must not be somebody else's too (a backup made with `cp -al`, a planted link).
    Raises OutputError if that can't be done; a file with one name, or none, is left alone.
    """
    try:
        status = files.stat(path)
    except OSError:
        return
    if status.st_nlink < 2 or not stat.S_ISREG(status.st_mode):
        return
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}.{secrets.token_hex(8)}")
    try:
        fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(status.st_mode))
        try:
            with open(path, "rb", buffering=0) as source:
                while block := source.read(_COPY_BYTES):
                    files.write_all(fd, block)
            files.fsync(fd)
        finally:
            files.close(fd)
        files.replace(temporary, path)
        files.sync_folder(path.parent)  # without it the rename itself can be lost
    except OSError as error:
        with suppress(OSError):
            files.unlink(temporary)
        raise OutputError(f"{path}: has a second name, and can't be copied: {error.strerror}", path) from None


def back_up(path: Path, word: str, files: FileSystem = REAL) -> Path | None:
    """Give the present content of `path` a second, unique name beside it (`<name>.<word>-<n>`), or None without one.

    A hard link where the file system has them, else a synced copy: the original is never touched.
    """
    if not path.exists():
        return None
    number = 1
    while True:
        backup = path.with_name(f"{path.name}.{word}-{number}")
        try:
            _link_or_copy(path, backup, files)
            return backup
        except FileExistsError:
            number += 1
        except OSError as error:
            raise OutputError(f"{backup}: can't be made: {error.strerror}", backup) from None


def _link_or_copy(path: Path, backup: Path, files: FileSystem) -> None:
    try:
        files.link(path, backup)
    except FileExistsError:
        raise
    except OSError:
        fd = files.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode_of(path))
        try:
            files.write_all(fd, path.read_bytes())
            files.fsync(fd)
        finally:
            files.close(fd)
