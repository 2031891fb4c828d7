"""Every system call that a writer makes, as methods of one small object.

A test or a crash explorer hands in one of its own: it can fail a write, cut it short, hold an fsync back, or note the
order of calls. Nothing here decides anything; errors are the system's own `OSError`.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]
_COPY_BYTES = 1 << 20


class FileSystem:
    """The real one. Methods are those of `os`; `sync_folder` makes names in a folder durable."""

    def open(self, path: PathLike, flags: int, mode: int = 0o644) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    write: Callable[[int, bytes | memoryview], int] = staticmethod(os.write)
    """No method of our own around it: it is called once an event."""

    def pwrite(self, fd: int, content: bytes, offset: int) -> int:
        return os.pwrite(fd, content, offset)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        return os.pread(fd, length, offset)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def stat(self, path: PathLike) -> os.stat_result:
        return os.stat(path, follow_symlinks=False)

    def mkdir(self, path: PathLike, mode: int = 0o777) -> None:
        os.mkdir(path, mode)

    def replace(self, source: PathLike, target: PathLike) -> None:
        os.replace(source, target)

    def link(self, source: PathLike, target: PathLike) -> None:
        os.link(source, target, follow_symlinks=False)

    def unlink(self, path: PathLike) -> None:
        os.unlink(path)

    def sync_folder(self, folder: PathLike) -> None:
        """A file system that can't sync folders is left alone."""
        fd = self.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.fsync(fd)
        except OSError:
            pass
        finally:
            self.close(fd)

    # -- put together from the calls above

    def write_all(self, fd: int, content: bytes | memoryview) -> None:
        """Write all of it; a short write is continued."""
        view = memoryview(content)
        while view:
            view = view[self.write(fd, view) :]

    def copy(self, source: PathLike, target: PathLike) -> None:
        """Copy a file's content to a new name, unsynced; what is there under that name is written over."""
        fd = self.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with open(source, "rb", buffering=0) as file:
                while block := file.read(_COPY_BYTES):
                    self.write_all(fd, block)
        finally:
            self.close(fd)

    def sync_file(self, path: PathLike) -> None:
        """Make a file's content durable, whoever wrote it."""
        fd = self.open(path, os.O_RDWR)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def make_folders(self, folder: Path) -> Sequence[Path]:
        """Make a folder and those above it that are missing; gives back the ones made, outermost first."""
        missing: list[Path] = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        made = []
        for path in reversed(missing):
            try:
                self.mkdir(path)
            except FileExistsError:  # somebody else was faster
                continue
            made.append(path)
        for path in made:
            self.sync_folder(path.parent)  # without it the new folder itself can be lost
        return made


REAL = FileSystem()
