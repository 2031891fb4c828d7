"""One line on stderr that tells how a run is getting on: counts, phases, never a text from a record."""

import sys
import threading
import time
from typing import IO, Any, Literal, TypeAlias

from eventstore.errors import UsageError
from eventstore.format.events import Json

Display: TypeAlias = Literal["auto", "plain", "none"]

PLAIN_SECONDS = 10.0
"""How often a line is printed where lines can't be overwritten."""


class ProgressLine:
    """Shows snapshots. `auto` overwrites one line on a terminal and is silent elsewhere, `plain` prints lines."""

    def __init__(self, display: Display = "auto", stream: IO[str] | None = None) -> None:
        if display not in ("auto", "plain", "none"):
            raise UsageError(f"display is auto, plain or none, not {display!r}")
        self._stream = sys.stderr if stream is None else stream
        self._overwrites = display == "auto" and self._stream.isatty()
        self._prints = self._overwrites or display == "plain"
        self._lock, self._last, self._next = threading.Lock(), "", 0.0

    def show(self, progress: Json) -> None:
        """Show a snapshot, if it is time for one. Never raises."""
        if not self._prints:
            return
        with self._lock:
            text = describe(progress)
            if text != self._last and (self._overwrites or time.monotonic() >= self._next):
                self._next = time.monotonic() + PLAIN_SECONDS
                self._write(f"\r\x1b[K{text}" if self._overwrites else f"{text}\n")
                self._last = text

    def end(self, progress: Json) -> None:
        """Show the last snapshot, and leave the line."""
        self._next = 0.0
        self.show(progress)
        if self._overwrites:
            self._write("\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a closed terminal is no reason to stop anything
            self._prints = False


def describe(progress: Json) -> str:
    """Return a snapshot in a line: how many of how many, what is under way and where, what went wrong."""
    total, finished = _number(progress, "total_tasks"), _number(progress, "finished_tasks")
    parts = [f"{finished}/{total} tasks", str(progress.get("status", ""))]
    for name in ("running", "failed", "error", "warning", "skipped", "reused"):
        if count := _number(progress, f"{name}_tasks"):
            parts.append(f"{count} {name}")
    phases = progress.get("current_phase_counts")
    if isinstance(phases, dict) and phases:
        counts = sorted(phases.items(), key=lambda item: (-item[1], item[0]))[:4]
        parts.append(", ".join(f"{_plain(phase)} {count}" for phase, count in counts))
    return " · ".join(parts)


def _number(progress: Json, name: str) -> int:
    value: Any = progress.get(name)
    return value if isinstance(value, int) else 0


def _plain(text: str) -> str:
    return "".join(character for character in text[:24] if character.isprintable())
