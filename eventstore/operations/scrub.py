"""A copy of a run that can be shared: credentials masked in every text, sealed streams sealed again.

The copy is made beside its place and takes its name at the end, so a copy under the name that was asked for is whole.
The original is only read. What can't be looked into (binary files) is copied as it is and named; what is no part of a
record (special files, links that lead out, leftovers, the lock) is left out and named.
"""

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from xxhash import xxh3_64

from eventstore.errors import CompassError, DamagedError, InputError, MalformedLineError, OutputError, RefusedError
from eventstore.format import codec
from eventstore.format.events import Json, StreamScrubbed
from eventstore.format.seal import NO_PREDECESSOR, seal
from eventstore.redaction.redactor import Redactor, secret_environment_values
from eventstore.results.fingerprints import fingerprint
from eventstore.results.tree_copy import remove_tree
from eventstore.run.directory import PROGRESS_NAME, RUN_LOG_NAME, RunDir
from eventstore.run.names import is_leftover
from eventstore.run.run import Run
from eventstore.stream.line_reader import open_regular
from eventstore.stream.lock import is_locked
from eventstore.stream.lock_file import LOCK_NAME
from eventstore.stream.scan import STREAM_NAME, Scan, scan

from .verify.verify import Options, verify_run

_PIECE_BYTES = 16 * 1024 * 1024
_IDENTITIES = frozenset({"run_id", "event", "task_id", "timestamp", "attempt", "request_key", "orchestration_id"})


class Scrubbed(Struct, kw_only=True):
    """What a copy holds: files whose text was masked, binary files that could not be looked into, names left out, and
    how many credentials `verify` still finds in it."""

    run_dir: Path
    out: Path
    files: int = 0
    masked: list[str] = []
    binary: list[str] = []
    left_out: list[str] = []
    credentials_left: int = 0


def scrub_run(path: str | os.PathLike[str], out: Path) -> Scrubbed:
    """Copy the run at `path` to `out` with its credentials masked.

    Raises RefusedError where `out` exists or lies inside the run, for what is nested too deeply to be searched, and
    while the writer is at work; DamagedError for a stream that needs a repair first; InputError for what can't be read
    and OutputError for what can't be written. No part of a copy stays behind.
    """
    run_dir = Run.open(path).path
    _refuse(run_dir, out)
    temporary = out.absolute().parent / f".tmp.{os.getpid()}.{out.name[:100]}"
    scrubbed = Scrubbed(run_dir=run_dir, out=out)
    try:
        temporary.mkdir(mode=0o700)
        _Copy(run_dir, temporary, scrubbed).run()
        report = verify_run(RunDir(temporary, out.name), Options(secrets="all", ignore=frozenset({"prefix_changed"})))
        scrubbed.credentials_left = report.counts.get("secret", 0)
        if os.path.lexists(out):
            raise RefusedError(f"{out}: exists, and nothing is replaced", out)
        temporary.rename(out)
    except OSError as error:
        place = Path(os.fsdecode(error.filename)) if error.filename else out
        kind = InputError if place.is_relative_to(run_dir) else OutputError
        done = "read" if kind is InputError else "written"
        raise kind(f"{place}: can't be {done}: {error.strerror}", place) from None
    finally:
        if os.path.lexists(temporary):
            remove_tree(temporary)
    return scrubbed


def _refuse(run_dir: Path, out: Path) -> None:
    if os.path.lexists(out):
        raise RefusedError(f"{out}: exists, and nothing is replaced", out)
    real = Path(os.path.realpath(out))
    if real.is_relative_to(os.path.realpath(run_dir)):
        raise RefusedError(f"{out}: lies inside the run that is copied", out)
    if is_locked(run_dir):
        raise RefusedError(f"{run_dir}: its writer is at work; copy the run when it is over", run_dir)


class _Copy:
    """One copy under way."""

    def __init__(self, source: Path, target: Path, scrubbed: Scrubbed) -> None:
        self._source, self._target, self._scrubbed = source, target, scrubbed
        secrets = secret_environment_values(os.environ)
        self._by_names, self._by_texts = Redactor(secrets), Redactor(secrets, by_key=False)

    def run(self) -> None:
        folders = [(self._source, self._target)]
        made: list[tuple[Path, os.stat_result]] = []
        while folders:
            source, target = folders.pop()
            for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
                name = Path(entry.path).relative_to(self._source).as_posix()
                status = entry.stat(follow_symlinks=False)
                copy = target / entry.name
                if is_leftover(entry.name) or name == LOCK_NAME:
                    self._leave_out(name)
                elif stat.S_ISDIR(status.st_mode):
                    copy.mkdir(mode=0o700)
                    made.append((copy, status))
                    folders.append((Path(entry.path), copy))
                elif stat.S_ISREG(status.st_mode):
                    self._file(Path(entry.path), copy, name)
                    _keep_mode(copy, status)
                elif stat.S_ISLNK(status.st_mode) and self._is_inner(os.readlink(entry.path)):
                    copy.symlink_to(os.readlink(entry.path))
                else:
                    self._leave_out(name)
        self._renew_manifests()
        for folder, status in reversed(made):
            _keep_mode(folder, status)

    def _leave_out(self, name: str) -> None:
        if name != LOCK_NAME:
            self._scrubbed.left_out.append(name)

    def _is_inner(self, link: str) -> bool:
        return not link.startswith("/") and ".." not in Path(link).parts and self._by_texts.text(link) == link

    # -- files

    def _file(self, source: Path, target: Path, name: str) -> None:
        self._scrubbed.files += 1
        if name == STREAM_NAME:
            changed = self._stream(source, target)
        elif name.endswith(".json") and (members := _document(source)) is not None:
            changed = self._document(source, target, members, name)
        else:
            changed = self._text(source, target, name)
        if changed:
            self._scrubbed.masked.append(name)

    def _document(self, source: Path, target: Path, members: Json, name: str) -> bool:
        redactor = self._by_texts if name == PROGRESS_NAME else self._by_names  # its members are named by ids
        masked = _redacted(redactor, members, source)
        if masked == members:
            return self._text(source, target, name)
        target.write_bytes(codec.dump_pretty(masked, sort_keys=[*members] == sorted(members)))
        return True

    def _text(self, source: Path, target: Path, name: str) -> bool:
        """A text in pieces of whole lines; a file that is no text goes as it is, and is named."""
        changed = False
        with target.open("xb") as copy:
            for piece in _pieces(source):
                try:
                    text = piece.decode("utf-8")
                except UnicodeDecodeError:
                    text = piece.decode("utf-8", "surrogateescape")
                    if name not in self._scrubbed.binary:
                        self._scrubbed.binary.append(name)
                if "\0" in text and name not in self._scrubbed.binary:
                    self._scrubbed.binary.append(name)
                if name in self._scrubbed.binary and name != RUN_LOG_NAME:
                    copy.write(piece)
                    continue
                masked = self._by_texts.text(text)
                changed = changed or masked is not text
                copy.write(piece if masked is text else masked.encode("utf-8", "surrogateescape"))
        return changed

    # -- the stream

    def _stream(self, source: Path, target: Path) -> bool:
        found = scan(source)
        changed, number, digest, prefix, sealing = False, 0, NO_PREDECESSOR, xxh3_64(), False
        size, run_id, last = 0, None, 0.0
        with target.open("xb") as copy:
            for block in found.blocks():
                for line, head in zip(block.lines, block.heads, strict=True):
                    body, session, was_sealed, masked = self._line(line)
                    changed = changed or masked
                    run_id, last = head.run_id, head.timestamp
                    if was_sealed and not sealing:
                        sealing = True
                        if number:
                            digest = prefix.hexdigest()
                            session["adopted"] = {"bytes": size, "lines": number, "xxh3": digest}
                    if sealing:
                        members = codec.dump_compact(session)[1:-1] + b"," if session else b""
                        body, digest = seal(body, number, digest, members)
                    else:
                        prefix.update(body)
                    copy.write(body)
                    size += len(body)
                    number += 1
            if sealing:
                payload = {"records": number, "masked": changed, "scrubbed_at": time.time()}
                event = StreamScrubbed(run_id=run_id or "", timestamp=last, payload=payload)
                copy.write(seal(codec.encode(event), number, digest)[0])
        _refuse_damage(source, found)
        return changed

    def _line(self, line: bytes) -> tuple[bytes, Json, bool, bool]:
        """A line masked, compact and without its proof where it had one; what its session opened with; was it sealed,
        was it changed."""
        members = codec.parse_object(line)
        log = members.pop("log", None)
        masked = {
            name: value if name in _IDENTITIES else _redacted(self._by_names, value, self._source / STREAM_NAME)
            for name, value in members.items()
        }
        changed = masked != members
        if log is None:
            return (_spelled_as(line, masked) if changed else line), {}, False, changed
        session = {name: value for name, value in log.items() if name not in ("seq", "prev", "xxh3", "adopted")}
        body = codec.dump_compact(masked) if changed else line[: line.rfind(b',"log":{')] + b"}"
        return body, session, True, changed

    # -- manifests

    def _renew_manifests(self) -> None:
        """Fingerprints of artifacts, of which a text was masked, computed again from the copies."""
        if not any("/artifacts/" in f"/{name}" for name in (*self._scrubbed.masked, *self._scrubbed.left_out)):
            return
        for path in sorted(self._target.rglob("*.json")):
            if path.is_symlink() or "artifacts" in path.relative_to(self._target).parts or not path.is_file():
                continue
            members = _document(path)
            if members is not None and self._renewed(members):
                path.chmod(0o600)
                path.write_bytes(codec.dump_pretty(members, sort_keys=[*members] == sorted(members)))

    def _renewed(self, value: Any) -> bool:
        if isinstance(value, list):
            return any([self._renewed(item) for item in value])
        if not isinstance(value, dict):
            return False
        entries, folder = value.get("entries"), value.get("directory")
        if not (isinstance(entries, list) and isinstance(folder, str)):
            return any([self._renewed(item) for item in value.values()])
        return any([self._renew_entry(entry, folder) for entry in entries if isinstance(entry, dict)])

    def _renew_entry(self, entry: Json, folder: str) -> bool:
        destination = entry.get("destination")
        if entry.get("status") != "collected" or not isinstance(destination, str):
            return False
        path = self._target / folder / destination
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._target)) or not path.exists():
            return False
        try:
            found = fingerprint(path)
        except CompassError:
            return False
        renewed = {"sha256": found.sha256, "size_bytes": found.size_bytes, "file_count": found.file_count}
        changed = any(entry.get(name) != number for name, number in renewed.items())
        entry.update(renewed)
        return changed


def _document(path: Path) -> Json | None:
    """The object that a file holds; None where it holds none, and is a text like others."""
    try:
        return codec.parse_object(b"".join(_pieces(path)))
    except (MalformedLineError, RecursionError, ValueError):
        return None


def _redacted(redactor: Redactor, value: Any, path: Path) -> Any:
    """Return a value from `path` masked. Raises RefusedError for one nested too deeply to be looked into."""
    try:
        return redactor.redact(value)
    except ValueError:
        words = "holds an object nested too deeply to be searched for credentials; nothing was copied"
        raise RefusedError(f"{path}: {words}", path) from None


def _pieces(path: Path) -> Iterator[bytes]:
    """A file in pieces of whole lines, each as long as its longest line needs."""
    with os.fdopen(open_regular(path), "rb") as file:
        while lines := file.readlines(_PIECE_BYTES):
            yield b"".join(lines)


def _spelled_as(line: bytes, members: Json) -> bytes:
    """An unsealed line as its writer spells: with or without spaces, letters beyond ASCII as they are or escaped."""
    separators = (", ", ": ") if line.startswith(b'{"run_id": ') else (",", ":")
    return codec.utf8(json.dumps(members, ensure_ascii=line.isascii(), separators=separators)) + b"\n"


def _refuse_damage(path: Path, found: Scan) -> None:
    if found.damaged:
        raise DamagedError(f"{path}: is damaged; compass-es repair first, then copy", path)


def _keep_mode(path: Path, status: os.stat_result) -> None:
    path.chmod(stat.S_IMODE(status.st_mode) & 0o777)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
