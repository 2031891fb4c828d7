"""run.log, searched once from the front in bounded memory: warnings, errors with their last exception, telling lines.

A line is `HH:MM:SS LEVEL    logger  message` (specification, "run.log"); what follows without that form belongs to the
message before. Nothing in it is a structured result, and nothing in it is trusted.
"""

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, structs

from eventstore.errors import InputError
from eventstore.redaction.redactor import find_secrets
from eventstore.stream.line_reader import open_regular
from projections.diagnose.facts import LogNote

MAX_NOTES = 500
MAX_TEXT = 2000
MAX_SECRETS = 50
SECRET_LINES = 50_000
"""So many lines are searched for credentials; `compass-es verify` searches all."""
END_LINES = 40
"""A note within this many lines of the log's end stands at its end."""
_MAX_LINE = 1 << 20
_HEADER = re.compile(rb"(\d\d:\d\d:\d\d) ([A-Z]+)\s+(\S+)\s*(.*)", re.DOTALL)
_TROUBLES = frozenset({b"WARNING", b"ERROR", b"CRITICAL", b"FATAL"})
_TASK = re.compile(r"(?:^|[ |])task(?:_id)?=(.+?)(?: \||$)", re.MULTILINE)
_TELLING = re.compile(
    rb"^(?:\w+(?:\.\w+)*(?:Error|Exception|Interrupt|Exit)\b|Killed\b|Terminated\b|Traceback )"
    rb"|out of memory|No space left|SIGTERM|SIGKILL|KeyboardInterrupt",
    re.IGNORECASE,
)


class LogFacts(Struct, kw_only=True):
    """What a search found; of many `notes` the first and the last.

    `secrets` are the lines that hold credentials, with their kind. `last_time` is the time of day of the last line that
    has one.
    """

    lines: int = 0
    last_time: str = ""
    notes: list[LogNote] = []
    levels: dict[str, int] = {}
    secrets: list[tuple[int, str]] = []
    problem: str | None = None


def search_log(path: Path) -> LogFacts:
    """Read a run.log from its front. A missing one gives no lines; one that can't be read, a problem in words."""
    facts = LogFacts()
    first: list[LogNote] = []
    last: deque[LogNote] = deque(maxlen=MAX_NOTES // 2)
    try:
        for note in _notes(path, facts):
            (first if len(first) < MAX_NOTES // 2 else last).append(note)
    except InputError as error:
        facts.problem = None if not path.exists() else error.message
    end = facts.lines - END_LINES
    facts.notes = [structs.replace(note, at_end=note.line > end) for note in (*first, *last)]
    return facts


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers from 1, without their ends; a line of more than a mebibyte comes in pieces."""
    with open(open_regular(path), "rb") as file:
        number, whole = 1, True
        while line := _read_line(file, path, number):
            yield number, line.rstrip(b"\r\n")
            whole = line.endswith(b"\n")
            number += whole


def _read_line(file: object, path: Path, number: int) -> bytes:
    try:
        line: bytes = file.readline(_MAX_LINE)  # type: ignore[attr-defined]
    except OSError as error:
        raise InputError(f"{path}: can't be read after line {number}: {error.strerror}", path) from None
    return line


def _notes(path: Path, facts: LogFacts) -> Iterator[LogNote]:
    current: LogNote | None = None
    for number, line in lines_of(path):
        facts.lines = number
        header = _HEADER.match(line)
        if header is not None:
            if current is not None:
                yield current
            facts.last_time = header[1].decode()
            level = header[2]
            current = _note(number, header) if level in _TROUBLES else None
            if current is not None:
                facts.levels[current.level] = facts.levels.get(current.level, 0) + 1
        elif current is not None and line[:1] not in (b" ", b"\t", b"") and not line.startswith(b"Traceback "):
            current = structs.replace(current, exception=_decode(line))
        elif current is None and line[:1] not in (b" ", b"\t", b"") and _TELLING.search(line):
            current = LogNote(line=number, level="-", text=_decode(line))
        if number <= SECRET_LINES and len(facts.secrets) < MAX_SECRETS:
            facts.secrets += [(number, match.kind) for match in find_secrets(_decode(line))]
    if current is not None:
        yield current


def _note(number: int, header: re.Match[bytes]) -> LogNote:
    text = _decode(header[4])
    task = _TASK.search(text)
    return LogNote(line=number, level=header[2].decode(), text=text, task_id=task[1] if task else None)


def _decode(line: bytes) -> str:
    return line[:MAX_TEXT].decode("utf-8", "replace")


def lines_about(path: Path, names: list[str], limit: int) -> tuple[list[tuple[int, str]], int]:
    """The lines that hold any of `names`, with their continuations: the first `limit`, and how many there are."""
    wanted = [re.compile(re.escape(name.encode()) + rb"(?![0-9A-Za-z_])") for name in names if name]
    found: list[tuple[int, str]] = []
    count, inside = 0, False
    for number, line in lines_of(path):
        if _HEADER.match(line):
            inside = any(pattern.search(line) for pattern in wanted)
        if inside:
            count += 1
            if len(found) < limit:
                found.append((number, _decode(line)))
    return found, count
