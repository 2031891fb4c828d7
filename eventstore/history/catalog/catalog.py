"""The catalog: a disposable DuckDB file with the rows of all runs below one folder, brought up to date by stat.

Deleting it loses nothing. It never lies inside a run. One writer at a time (a lock beside it); a first build, and a
refresh while somebody reads, happen on a copy that replaces the file in one step, any other in place. Rows and
watermark of a run change in one transaction: they are there together or not at all, whatever kills the process.
"""

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash
from msgspec import Struct

from eventstore.errors import InputError, LockedError, OutputError
from eventstore.history.rows.tables import ALL_TABLES, SCHEMA_VERSION
from eventstore.history.rows.values import key_text
from eventstore.run.directory import PARAMS_NAME, PROGRESS_NAME, RUN_INFO_NAME, RUN_LOG_NAME, RunDir
from eventstore.run.output_path import check_output_file
from eventstore.stream.filesystem import REAL, FileSystem
from eventstore.stream.scan import STREAM_NAME

from . import ingest
from .kind import is_catalog
from .seen_prefixes import cache_folder
from .spool import create_tables

LOCK_SECONDS = 60.0
Progress = Callable[[int, int], None]
"""Told of bytes read and bytes to read."""


class Refreshed(Struct, kw_only=True):
    """What a refresh did; `bytes_read` counts stream bytes. `problems` are `(path, words)` of runs that have any."""

    runs: int = 0
    events: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    read: int = 0
    appended: int = 0
    removed: int = 0


def default_file(root: Path) -> Path:
    """Return where the catalog of a folder is kept: in the user's cache, named after the folder and the format."""
    import duckdb

    major, minor = duckdb.__version__.split(".")[:2]
    name = xxhash.xxh3_64_hexdigest(os.fsencode(os.path.realpath(root)))
    return cache_folder() / f"{name}-s{SCHEMA_VERSION}-d{major}.{minor}.duckdb"


_NAME = re.compile(r"(?P<folder>[0-9a-f]{16})-s(?P<version>\d+)-d[\d.]+\.duckdb")


def remove_older(file: Path) -> None:
    """Remove catalogs of the same folder in formats of the past from the user's cache: nobody else ever would."""
    name = _NAME.fullmatch(file.name)
    with suppress(InputError):
        if name is not None and file.parent == cache_folder():
            _remove_older(file, name)


def _remove_older(file: Path, name: re.Match[str]) -> None:
    for other in file.parent.glob(f"{name['folder']}-s*"):
        found = _NAME.match(other.name)
        if found is not None and int(found["version"]) < int(name["version"]):
            with suppress(OSError):
                other.unlink()


def check_place(file: Path) -> None:
    """Raise UsageError for a catalog inside a run directory, or in place of a file that is not a catalog."""
    check_output_file(file, is_ours=is_catalog)


def check_owner(file: Path) -> None:
    """Raise OutputError for a catalog that somebody else made, or that is not a plain file."""
    try:
        link, status = file.lstat(), file.stat()
    except OSError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise OutputError(f"{file}: is not a plain file, so it is not believed to be a catalog", file)
    if {link.st_uid, status.st_uid} != {os.geteuid()}:
        raise OutputError(f"{file}: belongs to another user, so it is not believed", file)


@contextmanager
def private_files() -> Iterator[None]:
    """Files that are made in the block can be read by their owner only, as the runs that a catalog copies may be."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


class Catalog:
    """One catalog file, attached to a connection as `store`; it is copied, named and unnamed through `files`."""

    def __init__(self, connection: Any, file: Path, files: FileSystem = REAL) -> None:
        self.connection, self.file, self.files = connection, file, files
        self._part = file.with_name(f"{file.name}.part")

    # -- reading

    def attach(self) -> bool:
        """Attach the published file for reading; False where there is none, or it is broken or of another format."""
        import duckdb

        deadline = time.monotonic() + LOCK_SECONDS
        check_owner(self.file)
        while self.file.exists():
            try:
                self.connection.execute(f"ATTACH {quoted(self.file)} AS store (READ_ONLY)")
                version = self.connection.execute("SELECT version FROM store.main.catalog").fetchone()
            except duckdb.Error as error:
                self.detach()
                if "Could not set lock" in str(error) and time.monotonic() < deadline:
                    time.sleep(0.005)  # a writer is at work on it
                    continue
                return False
            if version == (SCHEMA_VERSION,):
                return True
            self.detach()
            return False
        return False

    def is_sound(self) -> bool:
        """Return whether every row of the published file can be read; takes as long as reading all of it."""
        import duckdb

        try:
            if not self.attach():
                return False
            for table in (*ALL_TABLES, "sources"):
                self.connection.execute(f"SELECT bit_xor(hash(r)) FROM store.main.{table} AS r").fetchall()
        except duckdb.Error:
            return False
        finally:
            self.detach()
        return True

    def detach(self) -> None:
        """Let go of the file."""
        import duckdb

        with suppress(duckdb.Error):
            self.connection.execute("DETACH DATABASE IF EXISTS store")

    # -- bringing up to date

    def refresh(
        self,
        runs: list[RunDir],
        progress: Progress | None = None,
        workers: int | None = None,
        *,
        rebuild: bool = False,
    ) -> Refreshed:
        """Read what is new, changed or gone, or with `rebuild` everything; afterwards it is attached for reading.

        Raises LockedError when another writer doesn't finish, OutputError if the file can't be written.
        """
        began = time.perf_counter()
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{self.file.parent}: can't be made: {error.strerror}", self.file) from None
        try:
            done = self._refresh(runs, progress, workers, rebuild)
        except OSError as error:
            raise OutputError(f"{self.file}: can't be written: {error.strerror or error}", self.file) from None
        row = self.connection.execute("SELECT coalesce(sum(events), 0) FROM store.main.runs").fetchone()
        done.events = int(row[0])
        done.seconds = time.perf_counter() - began
        return done

    def _refresh(self, runs: list[RunDir], progress: Progress | None, workers: int | None, rebuild: bool) -> Refreshed:
        with private_files(), self._lock():
            self._tidy()
            check_owner(self.file)
            self._make_private()
            have = not rebuild and self.attach()
            changes = ingest.find_changes(self.connection if have else None, with_signatures(runs))
            done = Refreshed(runs=len(runs))
            if not have or not changes.none:
                self.detach()
                if have and self._open_for_writing():
                    ingest.apply(self.connection, changes, done, progress, workers)
                    self.detach()
                else:
                    self._replace(have, changes, done, progress, workers)
                if not self.attach():
                    raise OutputError(f"{self.file}: can't be read back", self.file)
        return done

    def _make_private(self) -> None:
        """A catalog of an earlier version may be readable for all."""
        with suppress(FileNotFoundError):
            if stat.S_IMODE(self.file.stat().st_mode) & 0o077:
                self.file.chmod(0o600)

    def _open_for_writing(self) -> bool:
        """Attach the published file for writing; False while somebody reads it."""
        import duckdb

        self.files.sync_folder(self.file.parent)  # the log of a refresh before is gone for good before there is another
        try:
            self.connection.execute(f"ATTACH {quoted(self.file)} AS store")
        except duckdb.Error:
            self.detach()
            return False
        return True

    def _replace(
        self, have: bool, changes: ingest.Changes, done: Refreshed, progress: Progress | None, workers: int | None
    ) -> None:
        """Build on a copy (of nothing, for a first build) and put it in the file's place."""
        try:
            self._build(have, changes, done, progress, workers)
            self._publish()
        except BaseException:
            self._tidy()
            raise
        if not have:
            remove_older(self.file)

    def _build(
        self, have: bool, changes: ingest.Changes, done: Refreshed, progress: Progress | None, workers: int | None
    ) -> None:
        import duckdb

        has_log = have and self._copy()
        # Nothing of a build that is cut off is ever used, so it needs no write-ahead log; and no checkpoint but at its
        # end: one on the way writes rows that don't fill a group yet, and again when they do. Where there is a log
        # already it is gone on with: DuckDB 2.0.1 overwrites its own memory when told to replay one and write none.
        options = "" if has_log else " (RECOVERY_MODE no_wal_writes)"
        self.connection.execute(f"ATTACH {quoted(self._part)} AS store{options}")
        self.connection.execute("SET checkpoint_threshold='1TB'")
        try:
            if not have:
                self._create()
            ingest.apply(self.connection, changes, done, progress, workers, empty=not have)
            self.connection.execute("CHECKPOINT store")
        finally:
            with suppress(duckdb.Error):
                self.connection.execute("RESET checkpoint_threshold")
            self.detach()

    def _copy(self) -> bool:
        """Return the published file, and what a killed refresh left in a log: `changes` were found with both.

        Whether there is a log.
        """
        self.files.copy(self.file, self._part)
        logs = [(log, copy) for log, copy in zip(_logs(self.file), _logs(self._part), strict=True) if log.exists()]
        for log, copy in logs:
            self.files.copy(log, copy)
        return bool(logs)

    def _publish(self) -> None:
        """Put the build in the file's place, never beside a log that isn't its own.

        DuckDB doesn't sync names, so that after a crash a log may be there again that belongs to another file.
        """
        if any(log.exists() for log in _logs(self._part)):
            raise OutputError(f"{self._part}: DuckDB did not finish it", self._part)
        self._remove(*_logs(self.file))
        self.files.sync_folder(self.file.parent)  # also for a log that DuckDB removed by itself
        self.files.sync_file(self._part)
        self.files.replace(self._part, self.file)
        self.files.sync_folder(self.file.parent)

    def _create(self) -> None:
        create_tables(self.connection, "store.main")
        self.connection.execute(f"CREATE TABLE store.main.catalog AS SELECT {SCHEMA_VERSION}::INTEGER AS version")

    def _tidy(self) -> None:
        """What a killed build left behind; the lock is held, so nobody is at work on it."""
        with suppress(OSError):
            self._remove(self._part, *_logs(self._part))

    def _remove(self, *leftovers: Path) -> None:
        for leftover in leftovers:
            if os.path.lexists(leftover):
                self.files.unlink(leftover)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        fd = self.files.open(
            self.file.with_name(f"{self.file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600
        )
        try:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise LockedError(f"{self.file}: another process is refreshing it", self.file) from None
                    time.sleep(0.005)
            yield
        finally:
            self.files.close(fd)


def with_signatures(runs: Iterable[RunDir]) -> dict[str, tuple[RunDir, str]]:
    """Return runs by key, each with what stat says of its files."""
    return {key_text(run.run_key): (run, signature(run.path)) for run in runs}


def _logs(file: Path) -> list[Path]:
    """Return the names of DuckDB's write-ahead logs of a database file."""
    return [file.with_name(f"{file.name}{ending}") for ending in (".wal", ".wal.checkpoint", ".wal.recovery")]


def quoted(path: Path) -> str:
    """Return a path as an SQL literal."""
    return "'" + str(path).replace("'", "''") + "'"


# -- What stat says of a run directory: equal signatures mean that nothing has to be read again

_FILES = (STREAM_NAME, RUN_INFO_NAME, PROGRESS_NAME, PARAMS_NAME, RUN_LOG_NAME, "metrics.json", "progress.lock")
_FOLDERS = ("details", "details/running", "details/normal", "details/error", "details/fatal")


def signature(run_dir: Path) -> str:
    """Return the signature of a run directory as text."""
    base = os.fspath(run_dir)
    stat = os.stat
    parts = []
    for name in (*_FILES, *_FOLDERS):
        try:
            found = stat(f"{base}/{name}")
        except OSError:
            parts.append("-")
            if name == "details":
                break
        else:
            parts.append(f"{found.st_dev}.{found.st_ino}.{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}")
    return ";".join(parts)
