"""Copying a file or a folder tree as an artifact: original bytes and modes, nothing but files, folders and links.

Every name is opened relative to its folder's descriptor and without following links, so that a source which somebody
else is changing can't lead the copy elsewhere. A file that is not as long as it was, or that changed while it was
copied, is refused. Files whose bytes stand in the run already can share them (see `ContentIndex`).
"""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

import xxhash

from eventstore.errors import InputError, OutputError, RefusedError
from eventstore.stream.filesystem import REAL
from eventstore.stream.line_reader import describe_kind

from .fingerprints import Budget

_STEP = 1024 * 1024
_FICLONE = 0x40049409
_NO_SPACE = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "the file is too big"}

_T = TypeVar("_T")
Content: TypeAlias = tuple[bytes, int, int]
"""XXH3-128, size and mode of a regular file."""

Excluded = Callable[[str], bool]


class ContentIndex:
    """Regular files of one run by their content, so that equal ones can share their bytes.

    Found through XXH3-128, size and mode, confirmed by SHA-256 of both files as they stand. Shared by a reflink where
    the file system has them, else by a hard link: files in a run's artifacts are never changed in place.
    """

    def __init__(self, smallest: int = 4096) -> None:
        self._known: dict[Content, Path] = {}
        self._smallest = smallest
        self.shared_bytes = 0

    def add(self, path: Path, digest: bytes, size: int, mode: int) -> Content | None:
        """Remember a finished file; its key where it is the first with its content."""
        key = (digest, size, mode)
        if size < self._smallest or key in self._known:
            return None
        self._known[key] = path
        return key

    def moved(self, keys: list[Content], old: Path, new: Path | None) -> None:
        """Files that were just copied below `old` stand below `new` now, or nowhere."""
        for key in keys:
            path = self._known.pop(key, None)
            if path is not None and new is not None:
                self._known[key] = new.joinpath(path.relative_to(old))

    def share(self, path: Path, digest: bytes, size: int, mode: int) -> bool:
        """Make `path`, just written, share the bytes of an equal file; False, and nothing changed, where none is."""
        known = self._known.get((digest, size, mode))
        if known is None or known == path or size < self._smallest:
            return False
        try:
            if known.is_symlink() or stat.S_IMODE(known.stat().st_mode) != mode or _sha256(known) != _sha256(path):
                return False
            temporary = path.with_name(f".tmp.{os.getpid()}.{path.name[:100]}")
            if not _reflink(known, temporary, mode):
                os.link(known, temporary)
            os.replace(temporary, path)
        except OSError:
            return False
        self.shared_bytes += size
        return True


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _reflink(source: Path, target: Path, mode: int) -> bool:
    with source.open("rb") as file:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            fcntl.ioctl(fd, _FICLONE, file.fileno())
            os.fchmod(fd, mode)
            return True
        except OSError:
            target.unlink()
            return False
        finally:
            os.close(fd)


class TreeCopy:
    """One copy operation: a budget, an exclusion rule over paths relative to the source's parent, durable or not.

    `link` shares files with the source (reflink, else hard link) instead of copying them, where that is possible.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        excluded: Excluded | None = None,
        index: ContentIndex | None = None,
        link: bool = False,
        durable: bool = True,
    ) -> None:
        self._budget, self._excluded = budget, excluded or (lambda name: False)
        self._index, self._link, self._durable = index, link, durable
        self.added: list[Content] = []

    def copy(self, source: Path, target: Path) -> None:
        """Copy `source` to `target`, which must not exist. What was begun is left for the caller to remove.

        Raises InputError for what can't be read, OutputError for what can't be written, RefusedError for links and
        special files where none may stand, for changes under the copy, and beyond the limits.
        """
        try:
            parent = os.open(source.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{source}: can't be read: {error.strerror}", source) from None
        try:
            self._entry(parent, source.name, source, target, source.name)
        finally:
            os.close(parent)

    def _entry(self, folder: int, name: str, source: Path, target: Path, relative: str) -> None:
        self._budget.spend(source, entries=1)
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except OSError as error:
            raise InputError(f"{source}: can't be read: {error.strerror}", source) from None
        if stat.S_ISDIR(mode):
            self._folder(folder, name, source, target, relative)
        elif stat.S_ISREG(mode):
            self._file(folder, name, source, target)
        elif stat.S_ISLNK(mode):
            _written(target, lambda: os.symlink(os.readlink(name, dir_fd=folder), target))
        else:
            kind = describe_kind(mode)
            raise RefusedError(f"{source}: is {kind}, and an artifact holds files, folders and links", source)

    def _folder(self, parent: int, name: str, source: Path, target: Path, relative: str) -> None:
        fd = _open(parent, name, os.O_DIRECTORY, source)
        try:
            _written(target, lambda: os.mkdir(target, 0o700))
            with os.scandir(fd) as entries:
                for entry in entries:
                    inner = f"{relative}/{entry.name}"
                    if not self._excluded(inner):
                        self._entry(fd, entry.name, source / entry.name, target / entry.name, inner)
            mode = stat.S_IMODE(os.fstat(fd).st_mode) & 0o777
        except RecursionError:
            raise RefusedError(f"{source}: nested too deeply", source) from None
        finally:
            os.close(fd)
        if self._durable:
            REAL.sync_folder(target)
        _written(target, lambda: os.chmod(target, mode))

    def _file(self, parent: int, name: str, source: Path, target: Path) -> None:
        fd = _open(parent, name, os.O_NONBLOCK, source)
        try:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                raise RefusedError(f"{source}: changed while it was copied", source)
            mode = stat.S_IMODE(before.st_mode) & 0o777
            if self._link and self._linked(source, target, mode, before):
                self._budget.spend(source, size=before.st_size)
                return
            digest, size = _written(target, lambda: self._bytes(fd, target, mode, source))
            after = os.fstat(fd)
            if size != before.st_size or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise RefusedError(f"{source}: changed while it was copied", source)
        finally:
            os.close(fd)
        if self._index is not None:
            self._index.share(target, digest, size, mode)
            key = self._index.add(target, digest, size, mode)
            if key is not None:
                self.added.append(key)

    def _linked(self, source: Path, target: Path, mode: int, status: os.stat_result) -> bool:
        try:
            if _reflink(source, target, mode):
                return True
            os.link(source, target, follow_symlinks=False)
        except OSError:
            return False
        found = target.lstat()
        if (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino):
            return True
        target.unlink()  # another file took its name meanwhile
        return False

    def _bytes(self, fd: int, target: Path, mode: int, source: Path) -> tuple[bytes, int]:
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        digest, size = xxhash.xxh3_128(), 0
        buffer = memoryview(bytearray(_STEP))
        try:
            while count := _read(fd, buffer, source):
                self._budget.spend(source, size=count)
                REAL.write_all(out, buffer[:count])
                digest.update(buffer[:count])
                size += count
            os.fchmod(out, mode)
            if self._durable:
                os.fsync(out)
        finally:
            os.close(out)
        return digest.digest(), size


def _open(parent: int, name: str, flags: int, source: Path) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, dir_fd=parent)
    except OSError as error:
        raise InputError(f"{source}: can't be read: {error.strerror}", source) from None


def _read(fd: int, buffer: memoryview, source: Path) -> int:
    try:
        return os.readv(fd, [buffer])
    except OSError as error:
        raise InputError(f"{source}: can't be read: {error.strerror}", source) from None


def _written(target: Path, action: Callable[[], _T]) -> _T:
    try:
        return action()
    except OSError as error:
        words = _NO_SPACE.get(error.errno or 0, error.strerror)
        raise OutputError(f"{target}: can't be written: {words}", target) from None


def remove_tree(path: Path) -> None:
    """Remove a tree that this program made, folders without write permission included; links are not followed."""
    if not path.is_symlink() and path.is_dir():
        os.chmod(path, 0o700)
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            remove_tree(path / name)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
