"""What stands in a run as text: the log's own shape, failures that only the log tells of, and credentials anywhere.

Pure: bytes and text come in. The value of a credential is no part of any finding (specification, "run.log").
"""

import re
from collections.abc import Iterable

from eventstore.format import codec
from eventstore.format.events import KNOWN_EVENTS
from eventstore.format.records import Block
from eventstore.redaction.found import announced_secrets
from eventstore.redaction.redactor import find_secrets
from projections.fold import place_events

from .findings import Notes, Place

LOG_NAME = "run.log"
_LOG_LINE = re.compile(rb"\d\d:\d\d:\d\d [A-Z]+ +\S")
_SINK_FAILED = b"Progress sink failed: "
_DIGITS = b"0123456789."
EVENTS = place_events(takes=frozenset(KNOWN_EVENTS), passes_over=frozenset())  # any payload may hold a credential
_TAIL = b'"orchestration_id"'
_MAX_SEEN = 4096


class LogLines:
    """The rules about run.log, line by line."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._number = 0
        self.sink_failures = 0

    def apply(self, lines: Iterable[bytes], offset: int) -> None:
        """Check whole lines that begin at `offset`."""
        for line in lines:
            self._number += 1
            self._check(line, offset)
            offset += len(line)

    def _check(self, line: bytes, offset: int) -> None:
        if b"\0" in line:
            self._note("log_unreadable", f"{line.count(0)} NUL bytes in the line", offset)
        elif not line.isascii() and not _is_utf8(line):
            self._note("log_unreadable", "the line is no UTF-8", offset)
        elif self._number == 1 and not _LOG_LINE.match(line):
            self._note("log_unreadable", "the first line has no time and level", offset)
        if _SINK_FAILED in line:
            self.sink_failures += 1
            if self.sink_failures == 1:
                self._note("log_sink_failed", "the log says that a progress sink failed: events may be missing", offset)

    def _note(self, code: str, words: str, offset: int) -> None:
        self._notes.add(code, words, file=LOG_NAME, line=self._number, offset=offset)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class StreamSecrets:
    """Credentials in the payloads of a stream. Payloads that differ in digits alone are looked at once."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._seen: set[bytes] = set()
        self._last: dict[str, bytes] = {}

    def apply_block(self, block: Block, filled: Iterable[int]) -> None:
        """Look through a batch of records; `filled` are the indexes of those that may have a payload."""
        lines, heads = block.lines, block.heads
        for index in filled:
            event = heads[index].event
            line = lines[index]
            start, end = line.find(b'"payload"'), line.rfind(_TAIL)
            payload = line[start:end] if 0 <= start < end else line  # members in another order: the whole line
            if payload == self._last.get(event):
                continue
            self._last[event] = payload
            key = payload.translate(None, _DIGITS)
            if key not in self._seen:
                if len(key) < 4096 and len(self._seen) < _MAX_SEEN:
                    self._seen.add(key)
                self._look(block, index, payload, line)

    def _look(self, block: Block, index: int, payload: bytes, line: bytes) -> None:
        kinds = [match.kind for match in find_secrets(payload.decode("utf-8", "replace"))]
        if not kinds:  # what the text doesn't show may stand in the order of its members
            kinds += announced_secrets(codec.parse_object(line).get("payload"))
        for kind in dict.fromkeys(kinds):
            place, task_id = Place(block, index), block.heads[index].task_id
            self._notes.add("secret", f"what looks like a credential ({kind})", place, task_id=task_id)


def note_secrets(notes: Notes, text: str, *, file: str, offset: int = 0, line: int = 1) -> None:
    """Credentials in a text that begins at `offset` and `line` of a file, each with its own place."""
    for match in find_secrets(text):
        before = text[: match.start]
        notes.add(
            "secret",
            f"what looks like a credential ({match.kind})",
            file=file,
            offset=offset + len(before.encode("utf-8", "surrogateescape")),
            line=line + before.count("\n"),
        )
