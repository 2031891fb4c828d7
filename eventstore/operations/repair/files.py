"""The files of a repair: the damaged stream's backup, what is set aside, the record that is appended, the new mark."""

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct

from eventstore.errors import OutputError
from eventstore.format import codec
from eventstore.format.chain import Break, Link
from eventstore.format.events import Json, StreamRepaired
from eventstore.format.records import VERDICTS
from eventstore.format.seal import NO_PREDECESSOR, read_proof, seal
from eventstore.stream.atomic_file import TEMPORARY_PREFIX, mode_of
from eventstore.stream.filesystem import FileSystem
from eventstore.stream.line_reader import file_digest, open_regular, range_digest
from eventstore.stream.lock_file import Mark, render_slot, render_writer, slot_offset
from eventstore.stream.recovery import copy_range, session_members, writer_record
from eventstore.stream.scan import Scan

BACKUP_WORD, ASIDE_WORD = "unrepaired", "set-aside"


class Assessment(Struct, frozen=True, kw_only=True):
    """A rebuilt stream as the scan sees it, before its repair record.

    `removed` are the breaks of the chain that are left, `vouched` the range of lines without proof that no session
    vouches for, `mark` the witness's mark if the stream doesn't hold it any more, `promised` the events that a witness
    proves and that are gone, in words, `missing` the number of events that are known to be gone. `digest` is that of
    the whole file where no line is sealed, else empty.
    """

    bytes: int
    lines: int
    sealed: int
    last: Link | None
    removed: list[Json]
    vouched: Json | None
    digest: str
    mark: Mark | None
    promised: list[str]
    missing: int
    verdicts: dict[str, int]


class Backup(Struct, frozen=True):
    """A name for the damaged stream, and its content. `digest` is None where there is no stream to keep."""

    name: str
    number: int
    bytes: int = 0
    digest: str | None = None
    exists: bool = False


# -- looking at a rebuilt stream


def assess(target: Path, mark: Mark | None) -> Assessment:
    """Scan a rebuilt stream; `mark` is what the lock file says of the damaged one."""
    found = Scan(target, max_findings=None)
    found.mark = mark  # the folder's own witness speaks of another file
    sealed, unproven_end = 0, 0
    for block in found.blocks():
        proven = len(block.lines) if found.sealed else 0
        if block.offsets is not None:
            ends = [(offset + len(line), line) for offset, line in zip(block.offsets, block.lines, strict=True)]
            unproven = [end for end, line in ends if read_proof(line) is None]
            proven = len(block.lines) - len(unproven)
            unproven_end = max([unproven_end, *unproven])
        elif not found.sealed:
            unproven_end = block.offset + sum(map(len, block.lines))
        sealed += proven
    breaks = sorted(found.chain.breaks.values(), key=lambda known: known.resumes_seq)
    kept = mark is None or "lost_acknowledged" not in found.verdicts
    return Assessment(
        bytes=found.bytes,
        lines=found.lines.read,
        sealed=sealed,
        last=found.chain.last,
        removed=[_members(known) for known in breaks],
        vouched=_vouched(target, found, breaks, unproven_end),
        digest="" if found.sealed else _range_digest(target, 0, found.bytes),
        mark=None if kept else mark,
        promised=_promised(target, found, breaks, mark, kept),
        missing=_count_missing(breaks, found.records - sealed, found.chain.last, mark),
        verdicts={name: count for name, count in found.verdicts.items() if VERDICTS[name] == "error"},
    )


def _members(known: Break) -> Json:
    return {name: getattr(known, name) for name in known.__struct_fields__ if name != "code"}


def _vouched(target: Path, found: Scan, breaks: Sequence[Break], end: int) -> Json | None:
    unsealed = found.unexplained_unsealed
    starts = [0] if any(not known.follows for known in breaks) else unsealed[:1]
    if not starts:
        return None
    return {"offset": starts[0], "bytes": end - starts[0], "xxh3": _range_digest(target, starts[0], end)}


def _range_digest(path: Path, start: int, end: int) -> str:
    fd = open_regular(path)
    try:
        return range_digest(fd, start, end)
    finally:
        os.close(fd)


def _promised(target: Path, found: Scan, breaks: Sequence[Break], mark: Mark | None, kept: bool) -> list[str]:
    if mark is None:
        return []
    gone = [_words(known) for known in breaks if known.resumes_seq <= mark.seq]
    if not kept and not _holds(target, mark):
        last = "nothing" if found.chain.last is None else f"seq {found.chain.last.seq}"
        gone.append(f"seq {mark.seq} was on stable storage, and {last} is the last that is left")
    return gone


def _words(known: Break) -> str:
    if not known.follows:
        return f"the lines without proof before seq {known.resumes_seq} are not those that its session found"
    if known.last_seq < known.first_seq:
        return f"the line before seq {known.resumes_seq} is not the one that was there"
    one = known.first_seq == known.last_seq
    return f"seq {known.first_seq} is missing" if one else f"seq {known.first_seq} to {known.last_seq} are missing"


def _holds(target: Path, mark: Mark) -> bool:
    """Return whether the marked line is there, wherever it stands now."""
    for block in Scan(target, max_findings=0).blocks():
        for line in block.lines:
            proof = read_proof(line)
            if proof is not None and (proof.seq, proof.xxh3) == (mark.seq, mark.xxh3):
                return True
    return False


def _count_missing(breaks: Sequence[Break], unproven: int, last: Link | None, mark: Mark | None) -> int:
    between = sum(max(1, known.last_seq - known.first_seq + 1 - (0 if known.follows else unproven)) for known in breaks)
    at_the_end = mark.seq - (last.seq if last is not None else -1) if mark is not None else 0
    return between + max(0, at_the_end)


# -- what the damaged stream leaves behind


def find_backup(path: Path) -> Backup:
    """The name under which the damaged stream is kept: that of an interrupted repair of the same bytes, or a new one.

    Raises OutputError for a stream that is a link: what it points to belongs elsewhere.
    """
    if path.is_symlink():
        raise OutputError(f"{path}: is a symbolic link; repair the run that it leads to", path)
    if not path.exists():
        return Backup("", _free_number(path))
    size, digest = _content(path)
    number = 1
    while True:
        candidate, aside = (path.with_name(f"{path.name}.{word}-{number}") for word in (BACKUP_WORD, ASIDE_WORD))
        if candidate.is_file() and not candidate.is_symlink() and _content(candidate) == (size, digest):
            return Backup(candidate.name, number, size, digest, exists=True)
        if not os.path.lexists(candidate) and not os.path.lexists(aside):
            return Backup(candidate.name, number, size, digest)
        number += 1


def _free_number(path: Path) -> int:
    number = 1
    while any(os.path.lexists(path.with_name(f"{path.name}.{word}-{number}")) for word in (BACKUP_WORD, ASIDE_WORD)):
        number += 1
    return number


def _content(path: Path) -> tuple[int, str]:
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        return size, file_digest(fd, size)
    finally:
        os.close(fd)


def keep_backup(path: Path, backup: Backup, files: FileSystem) -> None:
    """Give the damaged stream its second name (a copy where the file system has no hard links), durably."""
    if backup.digest is None:
        return
    target = path.with_name(backup.name)
    if not backup.exists:
        try:
            files.link(path, target)
        except FileExistsError:
            raise
        except OSError:
            _copy(path, target, [(0, backup.bytes)], files)
    fd = files.open(target, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        files.fsync(fd)
    finally:
        files.close(fd)
    files.sync_folder(path.parent)


def set_aside(path: Path, ranges: Sequence[tuple[int, int]], backup: Backup, files: FileSystem) -> str | None:
    """Write the bytes that are taken out to a file of their own, each range ended by a newline; its name."""
    if not ranges:
        return None
    target = path.with_name(f"{path.name}.{ASIDE_WORD}-{backup.number}")
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}.{ASIDE_WORD}")
    with suppress(FileNotFoundError):
        files.unlink(temporary)
    _copy(path, temporary, ranges, files, end_lines=True)
    files.replace(temporary, target)
    return target.name


def _copy(
    source: Path, target: Path, ranges: Sequence[tuple[int, int]], files: FileSystem, end_lines: bool = False
) -> None:
    fd = open_regular(source)
    try:
        copy = files.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode_of(source))
        try:
            for start, end in ranges:
                copy_range(fd, copy, start, end, files)
                if end_lines and files.pread(fd, 1, end - 1) != b"\n":
                    files.write_all(copy, b"\n")
            files.fsync(copy)
        finally:
            files.close(copy)
    finally:
        os.close(fd)


# -- the record, and the mark


def repair_line(
    run_dir: Path, run_id: str | None, assessed: Assessment, payload: Json, now: float
) -> tuple[bytes, Link]:
    """The sealed `stream_repaired` line that follows a rebuilt stream, the first of a session of its own; its link.

    On a stream without proofs it vouches for all lines before it, as any session of ours does.
    """
    last, adopted = assessed.last, None
    seq, prev = (last.seq + 1, last.xxh3) if last is not None else (0, NO_PREDECESSOR)
    if last is None and assessed.lines:
        adopted = {"bytes": assessed.bytes, "lines": assessed.lines, "xxh3": assessed.digest}
        seq, prev = assessed.lines, assessed.digest
    event = StreamRepaired(run_id=run_id or run_dir.resolve().name, timestamp=now, payload=payload)
    line, digest = seal(codec.encode(event), seq, prev, session_members(writer_record(_version()), adopted))
    return line, Link(seq, digest)


@cache
def _version() -> str:
    try:
        return version("compass-es")
    except PackageNotFoundError:
        return "0"


def write_marks(lock_fd: int, size: int, link: Link | None, files: FileSystem) -> None:
    """Name this writer, and mark the repaired stream in both slots.

    If that fails or is interrupted, the stream's own record says that the older mark has no meaning any more.
    """
    if link is None:
        return
    slot = render_slot(Mark(link.seq, size, link.xxh3))
    with suppress(OSError):
        files.pwrite(lock_fd, render_writer(writer_record(_version())), 0)
        for turn in (0, 1):
            files.pwrite(lock_fd, slot, slot_offset(turn))
