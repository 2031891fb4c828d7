"""Opening a stream for writing: scan it, set a torn tail aside, adopt lines without proof, refuse anything worse."""

import os
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec import Struct

from eventstore.errors import DamagedError, InputError, OutputError
from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.format.records import VERDICTS, Block
from eventstore.format.seal import NO_PREDECESSOR

from .atomic_file import mode_of
from .filesystem import FileSystem
from .line_reader import file_digest
from .lock_file import read_witness
from .scan import STREAM_NAME, Scan

Observe = Callable[[Block], None]
_COPY_BYTES = 1024 * 1024


class Opened(Struct, frozen=True):
    """An open stream and where it goes on.

    `seq` is the next number and `prev` the digest before it. `adopted` describes a prefix without proofs that this
    session vouches for, if there is one. `torn` names the file that a torn tail was set aside into.
    """

    fd: int
    bytes: int
    seq: int
    prev: str
    run_id: str | None
    records: int
    sealed: bool
    adopted: Json | None = None
    torn: Path | None = None
    created: bool = False


def open_stream(
    run_dir: Path, files: FileSystem, observe: Observe | None = None, scanned: Scan | None = None
) -> Opened:
    """Open the stream of a run directory, or make it. The caller holds the lock.

    Accepted records go to `observe` in batches. `scanned` is a pass that the caller has made already: where the stream
    is the same still, it is not read again, and `observe` gets nothing.
    Raises DamagedError where more than a torn tail is wrong, OutputError where it can't be opened or healed.
    """
    path = run_dir / STREAM_NAME
    if not os.path.lexists(path):
        mark = read_witness(run_dir).mark
        if mark is not None:
            raise DamagedError(f"{path}: is gone, and {mark.bytes} bytes of it were on stable storage", path)
        return _create(run_dir, path, files)
    found = scanned if scanned is not None and scanned.is_current else _scan(path, observe)
    errors = [f"{count} {name}" for name, count in found.verdicts.items() if VERDICTS[name] == "error"]
    if errors:
        where = next((f" (first at byte {f.offset})" for f in found.findings if f.severity == "error"), "")
        raise DamagedError(
            f"{path}: the stream is damaged: {', '.join(errors)}{where}; `compass-es repair {run_dir}` shows what can "
            "be done, and nothing is appended before",
            path,
        )
    fd = _open(path, files, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
    try:
        return _heal(run_dir, path, fd, files, found)
    except OSError as error:
        files.close(fd)
        raise OutputError(f"{path}: its torn tail can't be set aside: {error.strerror}", path) from None
    except BaseException:
        files.close(fd)
        raise


def _create(run_dir: Path, path: Path, files: FileSystem) -> Opened:
    fd = _open(path, files, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
    files.sync_folder(run_dir)  # without it the new file's name can be lost
    return Opened(fd, 0, 0, NO_PREDECESSOR, None, 0, False, created=True)


def _open(path: Path, files: FileSystem, flags: int) -> int:
    try:
        return files.open(path, flags)
    except OSError as error:
        raise OutputError(f"{path}: can't be opened for writing: {error.strerror}", path) from None


def _scan(path: Path, observe: Observe | None) -> Scan:
    found = Scan(path)
    for block in found.blocks():
        if observe is not None:
            observe(block)
    return found


def _heal(run_dir: Path, path: Path, fd: int, files: FileSystem, found: Scan) -> Opened:
    whole = found.bytes - found.tail.torn_bytes
    if files.fstat(fd).st_size != found.bytes:
        raise InputError(f"{path}: somebody else is writing: it changed while it was read", path)
    torn = _set_aside(run_dir, path, fd, whole, found.bytes, files) if found.tail.torn_bytes else None
    last = found.chain.last
    prefix = file_digest(fd, whole) if last is None and whole else NO_PREDECESSOR
    adopted = {"bytes": whole, "lines": found.lines.read, "xxh3": prefix} if last is None and whole else None
    return Opened(
        fd=fd,
        bytes=whole,
        seq=last.seq + 1 if last else found.lines.read if adopted else 0,
        prev=last.xxh3 if last else prefix,
        run_id=found.run_id if found.records else None,
        records=found.records,
        sealed=last is not None,
        adopted=adopted,
        torn=torn,
    )


def _set_aside(run_dir: Path, path: Path, fd: int, start: int, end: int, files: FileSystem) -> Path:
    """Copy the torn tail to a file of its own, durably, and only then cut it off."""
    target, copy = new_file(path, "torn", files)
    try:
        copy_range(fd, copy, start, end, files)
        files.fsync(copy)
    finally:
        files.close(copy)
    files.sync_folder(run_dir)
    files.ftruncate(fd, start)
    files.fsync(fd)  # so that no crash brings the tail back under what is appended next
    return target


def new_file(path: Path, word: str, files: FileSystem) -> tuple[Path, int]:
    """Make `<name>.<word>-<n>` beside a file, with the first number that is free, and open it."""
    number = 1
    while True:
        target = path.with_name(f"{path.name}.{word}-{number}")
        try:
            return target, files.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode_of(path))
        except FileExistsError:
            number += 1


def copy_range(source: int, target: int, start: int, end: int, files: FileSystem) -> None:
    """Append the bytes of `source` from `start` up to `end` to `target`."""
    while start < end and (data := files.pread(source, min(_COPY_BYTES, end - start), start)):
        files.write_all(target, data)
        start += len(data)


def writer_record(version: str, *, owns_run_info: bool = False) -> dict[str, Any]:
    """Return who writes: a new id for this session, host, process, start of the machine, time, version.

    `owns_run_info` is noted where this writer, and nobody else, keeps `run_info.json`; absent, it does not.
    """
    owns = {"owns_run_info": True} if owns_run_info else {}
    return {
        "id": uuid4().hex,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot": boot_id(),
        "opened_at": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "version": version,
        **owns,
    }


def boot_id() -> str:
    """Return what tells one start of this machine from another; empty where the system doesn't say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def session_members(writer: dict[str, Any], adopted: Json | None) -> bytes:
    """Return what the first line of a session has in front of its proof, as JSON text with a comma at the end."""
    members: dict[str, Any] = {"writer": writer}
    if adopted is not None:
        members["adopted"] = adopted
    return codec.dump_compact(members)[1:-1] + b","
