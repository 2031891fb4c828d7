"""Rows from run.log: messages with their continuation lines, dated from the run's start, tasks linked where named.

A line has only the time of day (specification, "run.log"): its date is that of the run's start in the start's own
offset, one day later each time the clock falls back by more than half a day. Without a start there is no date.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from eventstore.errors import InputError
from eventstore.stream.line_reader import open_regular

from .tables import LogRow

_LINE = re.compile(r"(\d\d):(\d\d):(\d\d) ([A-Z]+)\s+(\S+)\s*(.*)", re.DOTALL)
_TASK = re.compile(r"(?:^|[ |])task(?:_id)?=(.+?)(?: \||$)", re.MULTILINE)
_HALF_A_DAY = 12 * 3600
MAX_MESSAGE = 64 * 1024
"""Characters kept of one message."""


def log_rows(path: Path, started_at: str | None, task_ids: set[str]) -> Iterator[LogRow]:
    """Yield messages of a run.log in order. Raises InputError if it can't be read."""
    clock = _Clock(started_at)
    row: LogRow | None = None
    for number, line in _lines(path):
        found = _LINE.fullmatch(line)
        if found is None and row is not None:
            if len(row.message) < MAX_MESSAGE:
                row.message += "\n" + line[: MAX_MESSAGE - len(row.message)]
            continue
        if row is not None:
            yield _link(row, task_ids)
        row = _row(number, line, found, clock)
    if row is not None:
        yield _link(row, task_ids)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with open(open_regular(path), "rb") as file:
        number = 0
        try:
            for number, line in enumerate(iter(lambda: file.readline(1 << 20), b""), 1):
                yield number, line.rstrip(b"\r\n").decode("utf-8", "replace")
        except OSError as error:
            raise InputError(f"{path}: can't be read after line {number}: {error.strerror}", path) from None


def _row(number: int, line: str, found: re.Match[str] | None, clock: "_Clock") -> LogRow:
    if found is None:
        return LogRow(line=number, message=line[:MAX_MESSAGE])
    hours, minutes, seconds, level, logger, message = found.groups()
    return LogRow(
        line=number,
        time=f"{hours}:{minutes}:{seconds}",
        logged_at=clock.date(int(hours) * 3600 + int(minutes) * 60 + int(seconds)),
        level=level,
        logger=logger,
        message=message[:MAX_MESSAGE],
    )


def _link(row: LogRow, task_ids: set[str]) -> LogRow:
    found = _TASK.search(row.message)
    if found is not None and found[1] in task_ids:
        row.task_id = found[1]
    return row


class _Clock:
    """Dates times of day; `started_at` is ISO 8601 with an offset."""

    def __init__(self, started_at: str | None) -> None:
        self._midnight: datetime | None = None
        self._last: int | None = None
        self._fresh = True
        try:
            start = datetime.fromisoformat(started_at or "")
        except ValueError:
            return
        if start.tzinfo is not None:
            self._midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
            self._last = int((start - self._midnight).total_seconds())

    def date(self, second: int) -> float | None:
        if self._midnight is None or self._last is None:
            return None
        if self._last - second > _HALF_A_DAY:
            self._midnight += timedelta(days=1)
        elif self._fresh and second - self._last > _HALF_A_DAY:  # logged just before the midnight the start came after
            self._midnight -= timedelta(days=1)
        self._last, self._fresh = second, False
        return self._midnight.timestamp() + second
