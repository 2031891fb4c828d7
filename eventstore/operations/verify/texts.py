"""What `verify` reads as text: run.log, and credentials in the small files or, where asked for, in every file."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from eventstore.errors import InputError
from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.redaction.found import announced_secrets
from eventstore.stream.line_reader import LineReader, open_regular
from eventstore.stream.scan import STREAM_NAME
from projections.verify.findings import Notes
from projections.verify.texts import LOG_NAME, LogLines, note_secrets

SecretsIn: TypeAlias = Literal["none", "records", "all"]
"""Where to look for credentials: nowhere, in the run records (quick), or in every file of the directory."""

_WHOLE_FILE_BYTES = 4 * 1024 * 1024


def check_log(notes: Notes, run_dir: Path, *, secrets: bool) -> int:
    """Check run.log; returns its size in bytes, 0 without one."""
    path = run_dir / LOG_NAME
    if not os.path.lexists(path):
        notes.add("log_missing", "there is no run.log", file=LOG_NAME)
        return 0
    log = LogLines(notes)
    number, size = 1, 0
    try:
        for offset, content in _texts(path):
            log.apply(io.BytesIO(content).readlines(), offset)
            if secrets:
                text = content.decode("utf-8", "surrogateescape")
                note_secrets(notes, text, file=LOG_NAME, offset=offset, line=number)
            number += content.count(b"\n")
            size = offset + len(content)
    except InputError as error:
        notes.add("log_unreadable", error.message.removeprefix(f"{path}: "), file=LOG_NAME)
    return size


def check_members(notes: Notes, name: str, members: Json | None, leave_out: tuple[str, ...] = ()) -> None:
    """Credentials in a small file that was parsed; `leave_out` names members that are looked at elsewhere."""
    if members is not None:
        kept = {key: value for key, value in members.items() if key not in leave_out}
        found = Notes()
        note_secrets(found, codec.dump_compact(kept, default=str).decode(), file=name)
        if not found.findings:
            for kind in dict.fromkeys(announced_secrets(kept)):
                found.add("secret", f"what looks like a credential ({kind})", file=name)
        for finding in found.findings:  # the place in our own spelling says nothing about the file
            notes.add("secret", finding.message, file=name)


def check_everything(notes: Notes, run_dir: Path, done: frozenset[str]) -> None:
    """Credentials in every file below a run, links not followed; `done` are names that were looked at already."""
    for path in _files(run_dir):
        name = path.relative_to(run_dir).as_posix()
        if name in done:
            continue
        number = 1
        with contextlib.suppress(InputError, OSError):
            for offset, content in _texts(path):
                note_secrets(notes, content.decode("utf-8", "surrogateescape"), file=name, offset=offset, line=number)
                number += content.count(b"\n")


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _texts(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield a file in pieces of whole lines with their offsets, the last one without a newline included."""
    fd = open_regular(path)
    try:
        reader = LineReader(fd, 0, os.fstat(fd).st_size)
        for offset, view in reader:
            if view is not None:
                yield offset, bytes(view)
        if reader.torn_bytes:
            yield reader.torn_offset, os.pread(fd, min(reader.torn_bytes, _WHOLE_FILE_BYTES), reader.torn_offset)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}", path) from None
    finally:
        os.close(fd)


RECORD_FILES = frozenset({STREAM_NAME, LOG_NAME})
