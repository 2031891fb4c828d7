"""The log: the single writer of a stream. Every line sealed, one `write()` each, nothing acknowledged is lost.

    with EventLog.open(run_dir, run_id="r1") as log:
        log.append(TaskStarted(task_id="t"))

What is promised, per durability and failure, is in docs/durability.md; the format is in docs/format.md.
"""

import errno
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal

from msgspec import Struct, structs
from xxhash import xxh3_64_hexdigest

from eventstore.errors import CompassError, LogPoisonedError, OutputError, UsageError
from eventstore.format.events import Event
from eventstore.format.seal import CLOSING

from .atomic_file import own_inode
from .encode import Origin, Speller
from .filesystem import REAL, FileSystem
from .group_commit import Durability, Position, Syncer
from .lock import RunLock
from .lock_file import (
    NOTE_OFFSET,
    Mark,
    Note,
    Witness,
    blank_note,
    read_witness,
    render_note,
    render_slot,
    render_writer,
    slot_offset,
)
from .recovery import Observe, Opened, copy_range, new_file, open_stream, session_members, writer_record
from .scan import STREAM_NAME, Scan

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_CHECK_EVERY = 256
"""Appends between two looks at the file's name where nothing else looks (`os`)."""


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a log, decided where a writer begins and handed down as one value.

    Its members are the keyword parameters of `EventLog.open` with the same names.
    """

    durability: Durability = "group"
    """When an event counts as appended; see docs/durability.md."""

    origin: Origin | None = None
    """The run's place in an orchestration, written into every line."""

    files: FileSystem = REAL
    """What all files are written through."""

    clock: Callable[[], float] = time.time
    """Unix time in seconds, for the times of lines."""


class EventLog:
    """Appends sealed lines to one stream under the run directory's lock. Safe to call from many threads.

    `unread` collects appended lines for a reader in the same process (live snapshots), from the moment that it is set
    to a list; `on_unread` is called when the list gets its first line. Both are for `live_snapshots`.
    """

    def __init__(
        self,
        run_dir: Path,
        opened: Opened,
        lock: RunLock,
        *,
        run_id: str,
        settings: Settings,
        owns_run_info: bool = False,
    ) -> None:
        durability, files = settings.durability, settings.files
        self.run_dir, self.path, self.run_id, self.durability = run_dir, run_dir / STREAM_NAME, run_id, durability
        self.opened = opened
        self.unread: list[bytes] | None = None
        self.on_unread: Callable[[], None] = lambda: None
        self._files, self._run_lock, self._fd = files, lock, opened.fd
        self._write = files.write
        self._spell = Speller(run_id, settings.origin, settings.clock).speller()
        self._lock = threading.Lock()
        self._bytes, self._seq, self._prev = opened.bytes, opened.seq, opened.prev.encode()
        self._any_sealed = opened.sealed
        self.writer = writer_record(_version(), owns_run_info=owns_run_info)
        self._session = session_members(self.writer, opened.adopted)
        self._in_flight: tuple[bytes, bytes, int, int] | None = None
        self._failure: CompassError | None = None
        self._marks = 0
        self._note = Note()
        self._syncer = Syncer(self.position, self._make_durable)
        self._always, self._group = durability == "always", durability == "group"
        self._write_witness()
        if self._group:
            self._syncer.start()
        _open_logs.add(self)

    @classmethod
    def open(
        cls,
        run_dir: str | os.PathLike[str],
        *,
        run_id: str | None = None,
        durability: Durability = "group",
        origin: Origin | None = None,
        files: FileSystem = REAL,
        clock: Callable[[], float] = time.time,
        lock: RunLock | None = None,
        observe: Observe | None = None,
        default_run_id: str | None = None,
        owns_run_info: bool = False,
        scanned: Scan | None = None,
    ) -> "EventLog":
        """Take the lock, scan and heal the stream (or make it), and start a session.

        `run_id` must be the stream's own if it has one; without it the stream's is taken, else `default_run_id`, else
        the directory's name. Records that are already there go to `observe` in batches, unless `scanned` is a pass
        that the caller has made and the stream is the same still. A `lock` that is handed in
        is released on close, and when opening fails. `owns_run_info` says that this writer keeps `run_info.json` too;
        the session's first line records it.
        Raises LockedError, naming the writer that holds the lock; DamagedError where more than a torn tail is wrong;
        UsageError where the stream belongs to another run; OutputError where it can't be written.
        """
        return cls.open_as(
            Path(run_dir),
            Settings(durability=durability, origin=origin, files=files, clock=clock),
            run_id=run_id,
            lock=lock,
            observe=observe,
            default_run_id=default_run_id,
            owns_run_info=owns_run_info,
            scanned=scanned,
        )

    @classmethod
    def open_as(
        cls,
        run_dir: Path,
        settings: Settings,
        *,
        run_id: str | None = None,
        lock: RunLock | None = None,
        observe: Observe | None = None,
        default_run_id: str | None = None,
        owns_run_info: bool = False,
        scanned: Scan | None = None,
    ) -> "EventLog":
        """Start a session as `open` does, for a caller that has its settings as one value."""
        if settings.durability not in ("always", "group", "os"):
            raise UsageError(f"durability is always, group or os, not {settings.durability!r}")
        files = settings.files
        lock = lock or RunLock(run_dir)
        opened: Opened | None = None
        try:
            own_inode(run_dir / STREAM_NAME, files)
            lock.hold_stream()
            own_inode(run_dir / STREAM_NAME, files)
            lock.hold_stream()
            opened = open_stream(run_dir, files, observe, scanned)
            if opened.created:
                lock.hold_stream()
            if run_id is not None and opened.run_id is not None and opened.run_id != run_id:
                raise UsageError(f"{run_dir}: the stream belongs to run {opened.run_id}, not to {run_id}", run_dir)
            name = opened.run_id or run_id or default_run_id or run_dir.resolve().name
            return cls(
                run_dir,
                opened,
                lock,
                run_id=name,
                settings=settings,
                owns_run_info=owns_run_info,
            )
        except BaseException:
            if opened is not None:
                files.close(opened.fd)
            lock.release()
            raise

    # -- appending

    def append(self, event: Event) -> int:
        """Append one event and return its `seq`, once it is as durable as the log's durability says.

        Raises OutputError if the line could not be written (nothing of it is left, and the next append may succeed),
        LogPoisonedError if what is on disk is not known any more, UsageError for what is not an event of this run.
        """
        seq, end = self._append(event)
        if self._always:
            self._syncer.wait_for(end)
        return seq

    async def append_async(self, event: Event) -> int:
        """Append one event as `append` does, without holding the event loop for an fsync."""
        seq, _ = self._append(event)
        if self._always:
            await self._syncer.future()
        return seq

    def _append(self, event: Event) -> tuple[int, int]:
        with self._lock:
            if self._failure is not None or self._in_flight is not None:
                self._recover()
            body, seq = self._spell(event), self._seq  # under the lock, so that times stand in the order of lines
            text = b'%b,"log":{%b"seq":%d,"prev":"%b","xxh3":"' % (body, self._session, seq, self._prev)
            digest = xxh3_64_hexdigest(text).encode()
            line = text + digest + CLOSING
            # An interrupt may strike anywhere from here on: what is in flight tells the next caller where to look.
            self._in_flight = (line, digest, self._bytes, seq)
            size = len(line)
            try:
                if self._write(self._fd, line) != size:
                    self._continue(line)
            except OSError as error:
                self._undo(error, size)
            self._bytes = end = self._bytes + size
            self._seq, self._prev, self._session, self._in_flight = seq + 1, digest, b"", None
            unread = self.unread
            if unread is not None:
                unread.append(line)
                if len(unread) == 1:
                    self.on_unread()
        if self._group:
            if not self._syncer.dirty:
                self._syncer.request()
        elif not seq % _CHECK_EVERY and not self._always:
            self.check_place()
        return seq, end

    def take_unread(self) -> list[bytes]:
        """Return the lines appended since the last call. They are collected from the first call on."""
        with self._lock:
            lines, self.unread = self.unread or [], []
        return lines

    def _continue(self, line: bytes) -> None:
        """After a short write: write the rest, if the file holds what it should. Raises OSError if it can't be."""
        written = self._files.fstat(self._fd).st_size - self._bytes
        if not 0 <= written < len(line):
            raise OSError(errno.EIO, f"a short write left {written} bytes")
        self._files.write_all(self._fd, memoryview(line)[written:])

    def _undo(self, error: OSError, length: int) -> None:
        """A write failed: cut off what it left, and say so. What can't be cut off poisons the log."""
        try:
            left = self._files.fstat(self._fd).st_size - self._bytes
            if not 0 <= left <= length:
                raise OSError(errno.EIO, f"the file is {left} bytes longer than it should be")
            if left:
                self._files.ftruncate(self._fd, self._bytes)
        except OSError as second:
            self._poison(f"a write failed ({error.strerror}), and what it left can't be undone: {second.strerror}")
        self._in_flight = None
        hint = "; recording goes on once there is room" if error.errno in _FULL else ""
        raise OutputError(
            f"{self.path}: the event can't be written: {error.strerror}; nothing of it was kept{hint}", self.path
        ) from error

    def _recover(self) -> None:
        """A failure is final; a write that an interrupt left in flight is settled by what the file holds."""
        if self._failure is not None:
            raise self._failure
        assert self._in_flight is not None
        line, digest, start, seq = self._in_flight
        left = self._files.fstat(self._fd).st_size - start
        if left == len(line):
            self._bytes, self._seq, self._prev, self._session = start + left, seq + 1, digest, b""
            if self.unread is not None:
                self.unread.append(line)
        elif 0 <= left < len(line):
            self._files.ftruncate(self._fd, start)
        else:
            self._poison(f"an interrupted write left {left} bytes")
        self._in_flight = None

    def _poison(self, why: str) -> None:
        self._failure = self._failure or LogPoisonedError(
            f"{self.path}: {why}; what is on disk is no longer known, so nothing more is appended by this writer",
            self.path,
        )
        raise self._failure

    # -- durability

    @property
    def failure(self) -> CompassError | None:
        """Why this log takes no more events, or None while it does."""
        return self._failure

    def position(self) -> Position:
        """Return how far the stream is written."""
        with self._lock:
            return Position(self._bytes, self._seq - 1, self._prev.decode())

    def sync(self) -> None:
        """Return when everything appended so far is on stable storage, whatever the durability."""
        if self._failure is not None:
            raise self._failure
        self._syncer.wait_for(self.position().bytes)

    async def sync_async(self) -> None:
        """Make durable what `sync` makes durable, without holding the event loop."""
        if self._failure is not None:
            raise self._failure
        await self._syncer.future()

    def _make_durable(self, position: Position) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            self._files.fsync(self._fd)
        except OSError as error:
            # The kernel may have dropped the pages it could not write: asking again would be told that all is well.
            self._poison(f"an fsync failed: {error.strerror}")
        self.check_place()
        if self._any_sealed or self._seq > self.opened.seq:
            self._mark(position)

    def _mark(self, position: Position) -> None:
        mark = Mark(position.seq, position.bytes, position.xxh3)
        try:
            self._files.pwrite(self._run_lock.fd, render_slot(mark), slot_offset(self._marks))
            self._marks += 1
        except OSError:
            return  # the mark is a witness, not the promise: the fsync was done, and the older mark stays true

    def _write_witness(self) -> None:
        """Name this writer in the lock file, and keep the mark that is there."""
        known: Witness = read_witness(self.run_dir)
        try:
            self._files.pwrite(self._run_lock.fd, render_writer(self.writer), 0)
            if known.mark is not None:
                self._files.pwrite(self._run_lock.fd, render_slot(known.mark), slot_offset(0))
                self._marks = 1
        except OSError as error:
            path = self._run_lock.path
            raise OutputError(f"{path}: can't be written: {error.strerror}", path) from None
        self._note = known.note or self._note
        if known.note is None:
            with suppress(OSError):  # without its room the note may fail later, and recording need not
                self._files.pwrite(self._run_lock.fd, blank_note(), NOTE_OFFSET)

    def note_left(self) -> None:
        """Note in the lock file that this writer lets the run go without its end; nothing is said where it can't be."""
        moment = datetime.now().astimezone().isoformat(timespec="milliseconds")
        self._write_note(structs.replace(self._note, writer=self.writer["id"], left_at=moment))

    def note_loss(self, count: int, reason: str) -> None:
        """Note in the lock file that `count` events could not be appended; 0 once the stream itself says so."""
        self._write_note(structs.replace(self._note, lost=count, reason=reason))

    def _write_note(self, note: Note) -> None:
        if self._run_lock.fd < 0 or note == self._note:
            return
        with suppress(OSError):
            self._files.pwrite(self._run_lock.fd, render_note(note), NOTE_OFFSET)
            self._note = note

    def check_place(self) -> None:
        """Refuse to append if the file was replaced, removed, or written by somebody else. Raises what it finds."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._in_flight is not None:
                self._recover()
            held = self._files.fstat(self._fd)
            try:
                named = self._files.stat(self.path)
            except OSError:
                self._rescue("was removed under its writer")
            else:
                if not os.path.samestat(held, named):
                    self._rescue("was replaced under its writer")
            if held.st_size != self._bytes:
                self._poison(f"somebody else changed it: it has {held.st_size} bytes, this writer left {self._bytes}")

    def _rescue(self, what: str) -> None:
        """The open file still holds every line: give it a name again, if the folder is still there."""
        kept = "the folder is gone too"
        try:
            path, fd = new_file(self.path, "rescued", self._files)
            try:
                copy_range(self._fd, fd, 0, self._bytes, self._files)
                self._files.fsync(fd)
            finally:
                self._files.close(fd)
            self._files.sync_folder(self.run_dir)
            kept = f"all its lines are in {path.name}"
        except OSError as error:
            kept = f"its lines could not be kept: {error.strerror}"
        self._poison(f"it {what} ({kept})")

    # -- the end

    def close(self) -> None:
        """Make everything durable (`os` asks for nothing), stop, and let the lock go; harmless when done twice.

        Raises what the last fsync raised, after letting go all the same.
        """
        if self._fd < 0:
            return
        try:
            if self._failure is None and self.durability != "os":
                self.sync()
        finally:
            self._syncer.close()
            self._let_go(UsageError(f"{self.path}: this log is closed", self.path))

    def _let_go(self, reason: CompassError) -> None:
        self._failure = self._failure or reason
        fd, self._fd = self._fd, -1
        _open_logs.discard(self)
        if fd >= 0:
            self._files.close(fd)
            self._run_lock.release()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False

    def leave_in_child(self) -> None:
        """Close the copies that a forked child has: it may not use them, and they would keep the lock alive."""
        self._failure = UsageError(f"{self.path}: opened by another process; a forked child may not write", self.path)
        self._lock, self._syncer = threading.Lock(), Syncer(self.position, self._make_durable)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._run_lock.leave_in_child()


_open_logs: "weakref.WeakSet[EventLog]" = weakref.WeakSet()


def _leave_all_in_child() -> None:
    for log in list(_open_logs):
        log.leave_in_child()
    _open_logs.clear()


os.register_at_fork(after_in_child=_leave_all_in_child)


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # late: it costs start-up time

    try:
        return version("compass-es")
    except PackageNotFoundError:
        return "0"
