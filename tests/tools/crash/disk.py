"""A model of one folder on a disk: what is on stable storage, and what was only asked for.

`RecordingFileSystem` does every call for real and notes it. `points` turns the notes into the moments between two
calls; each knows for every file its durable bytes and the changes since, and for the folder its durable names and the
changes since. A crash keeps the durable part, and of the rest whatever it likes (`states.py`).
"""

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eventstore.stream.filesystem import FileSystem, PathLike


@dataclass(frozen=True)
class Write:
    """Bytes at an offset."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    """A new length."""

    length: int


Change = Write | Truncate


@dataclass(frozen=True)
class Name:
    """A change of the folder: `name` leads to file number `inode`, or, with None, to nothing; `gone` disappears."""

    name: str
    inode: int | None
    gone: str | None = None


@dataclass
class Note:
    """One entry of the log of calls. `kind` is change, fsync, name, sync_folder or ack."""

    kind: str
    inode: int = 0
    change: Change | None = None
    name: Name | None = None
    acknowledged: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """A file at a moment: durable bytes and changes since the last fsync, in order."""

    durable: bytes = b""
    pending: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Point:
    """The disk between two calls; `renamed` tells that the one before changed a name."""

    number: int
    files: Mapping[int, File]
    names: Mapping[str, int]
    pending_names: tuple[Name, ...]
    acknowledged: Mapping[str, Any]
    renamed: bool = False


class RecordingFileSystem(FileSystem):
    """Does every call, and notes what it changes in `folder`; calls from several threads are noted in some order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[Note] = []
        self._lock = threading.RLock()
        self._inodes: dict[int, int] = {}
        self._by_name: dict[str, int] = {}
        self._next = 0
        self.initial: dict[str, bytes] = {}
        for path in sorted(folder.iterdir()):
            if path.is_file():
                self.initial[path.name] = path.read_bytes()
                self._by_name[path.name] = self._new()

    def _new(self) -> int:
        self._next += 1
        return self._next

    def acknowledge(self, **what: Any) -> None:
        """Note what a caller may rely on from here on."""
        with self._lock:
            self.notes.append(Note("ack", acknowledged=what))

    def _inode_of(self, fd: int) -> int:
        known = self._inodes.get(fd)
        if known is not None:
            return known
        # Opened by somebody else (the lock): known by its name.
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        if name not in self._by_name:
            self._name(Name(name, self._new()))
        return self._by_name[name]

    def _name(self, change: Name) -> None:
        if change.gone is not None:
            self._by_name.pop(change.gone, None)
        if change.inode is None:
            self._by_name.pop(change.name, None)
        else:
            self._by_name[change.name] = change.inode
        self.notes.append(Note("name", name=change))

    def _here(self, path: PathLike) -> str | None:
        path = Path(path)
        return path.name if path.parent == self.folder else None

    # -- the calls

    def open(self, path: PathLike, flags: int, mode: int = 0o644) -> int:
        with self._lock:
            existed = os.path.lexists(path)
            fd = super().open(path, flags, mode)
            name = self._here(path)
            if name is not None and not flags & os.O_DIRECTORY:
                if not existed:
                    self._name(Name(name, self._new()))
                elif flags & os.O_TRUNC:
                    self.notes.append(Note("change", self._by_name[name], Truncate(0)))
                self._inodes[fd] = self._by_name[name]
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._inodes.pop(fd, None)
            super().close(fd)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        with self._lock:
            count = os.write(fd, content)
            offset = os.lseek(fd, 0, os.SEEK_CUR) - count
            self.notes.append(Note("change", self._inode_of(fd), Write(offset, bytes(content[:count]))))
            return count

    def pwrite(self, fd: int, content: bytes, offset: int) -> int:
        with self._lock:
            inode = self._inode_of(fd)
            count = os.pwrite(fd, content, offset)
            self.notes.append(Note("change", inode, Write(offset, bytes(content[:count]))))
            return count

    def ftruncate(self, fd: int, length: int) -> None:
        with self._lock:
            os.ftruncate(fd, length)
            self.notes.append(Note("change", self._inode_of(fd), Truncate(length)))

    def fsync(self, fd: int) -> None:
        with self._lock:
            self.notes.append(Note("fsync", self._inode_of(fd)))

    def sync_folder(self, folder: PathLike) -> None:
        with self._lock:
            if Path(folder) == self.folder:
                self.notes.append(Note("sync_folder"))

    def replace(self, source: PathLike, target: PathLike) -> None:
        with self._lock:
            super().replace(source, target)
            self._name(Name(Path(target).name, self._by_name[Path(source).name], gone=Path(source).name))

    def link(self, source: PathLike, target: PathLike) -> None:
        with self._lock:
            super().link(source, target)
            self._name(Name(Path(target).name, self._by_name[Path(source).name]))

    def unlink(self, path: PathLike) -> None:
        with self._lock:
            super().unlink(path)
            self._name(Name(Path(path).name, None))


def points(recorded: RecordingFileSystem) -> Iterator[Point]:
    """The disk before the first call, and after each."""
    names = {name: number + 1 for number, name in enumerate(sorted(recorded.initial))}
    files = {names[name]: File(content) for name, content in recorded.initial.items()}
    pending: tuple[Name, ...] = ()
    acknowledged: dict[str, Any] = {}
    yield Point(0, dict(files), dict(names), pending, dict(acknowledged))
    for number, note in enumerate(recorded.notes, 1):
        if note.kind == "change":
            known = files.get(note.inode, File())
            assert note.change is not None
            files[note.inode] = File(known.durable, (*known.pending, note.change))
        elif note.kind == "fsync":
            known = files.get(note.inode, File())
            files[note.inode] = File(content_after(known.durable, known.pending))
        elif note.kind == "name":
            assert note.name is not None
            pending = (*pending, note.name)
        elif note.kind == "sync_folder":
            names, pending = names_after(names, pending), ()
        else:
            acknowledged |= note.acknowledged
        yield Point(number, dict(files), dict(names), pending, dict(acknowledged), note.kind == "name")


def content_after(content: bytes, changes: tuple[Change, ...] | list[Change]) -> bytes:
    """A file's bytes after changes; what was never written reads as zeros."""
    for change in changes:
        if isinstance(change, Truncate):
            content = content[: change.length].ljust(change.length, b"\0")
            continue
        end = change.offset + len(change.data)
        content = content.ljust(change.offset, b"\0")
        content = content[: change.offset] + change.data + content[end:]
    return content


def names_after(names: Mapping[str, int], changes: tuple[Name, ...] | list[Name]) -> dict[str, int]:
    """The folder's names after changes."""
    after = dict(names)
    for change in changes:
        if change.gone is not None:
            after.pop(change.gone, None)
        if change.inode is None:
            after.pop(change.name, None)
        else:
            after[change.name] = change.inode
    return after
