"""Live snapshots: a thread that folds appended lines and keeps `progress.json` and `run_info.json` current.

Nothing here is on the appending call: that only adds its line to a list. The fold is the one of `projections`, the
same that `replay` runs. `progress.json` is at most 100 ms behind while the run is busy, always with a trailing write,
without fsync. `run_info.json` is written when its status or provenance changes, and for plans whenever they have grown
by a good part of its size: then what is written for one attempt does not depend on how many there were before.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from eventstore.errors import OutputError
from eventstore.format import codec
from eventstore.format.events import KNOWN_EVENTS, Json
from eventstore.format.heads import session_writer
from eventstore.format.records import Block, Head
from eventstore.run.directory import PROGRESS_NAME, RUN_INFO_NAME
from eventstore.stream.atomic_file import replace_file
from eventstore.stream.filesystem import REAL, FileSystem
from eventstore.stream.wakeup import Bell
from projections.fold import place_events
from projections.snapshots import progress, run_info
from projections.snapshots import replay as folding
from projections.snapshots.run_info import pretty_pieces

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.1
GROWTH = 0.5
"""`run_info.json` is written again when the lines of new plans come to this part of its (indented, so longer) bytes."""

_LOOK_SECONDS = 1.0
_CHUNK_LINES = 200
_CHUNK_PIECES = 20
_STATUS_EVENTS = frozenset({"run_started", "run_finished", "metric_artifacts_written"})
EVENTS = place_events(
    takes=_STATUS_EVENTS | {"execution_plan_resolved", "partial_saved"},
    passes_over={
        "tasks_loaded",
        "reuse_loaded",
        "task_started",
        "phase_changed",
        "attempt_started",
        "attempt_retry",
        "attempt_finished",
        "task_finished",
        "summary_started",
        "stream_repaired",
        "stream_scrubbed",
        "records_lost",
    },
)
_any_heads = msgspec.json.Decoder(list[Head])
_KnownHead = msgspec.defstruct(
    "KnownHead",
    [
        ("run_id", str),
        ("event", Literal[tuple(KNOWN_EVENTS)]),  # strings that need not be made
        ("timestamp", int | float),
        ("task_id", str | None, None),
    ],
    gc=False,
)
_known_heads = msgspec.json.Decoder(list[_KnownHead])  # type: ignore[valid-type]


class Noticed(Struct):
    """What went by since the last write that decides about files."""

    plan_bytes: int = 0
    status: bool = False
    saved: bool = False
    artifacts: bool = False


class LiveSnapshots:
    """Folds what `take()` gives and writes both snapshots below `run_dir`, from a thread of its own.

    `state` is the fold so far; `keeps_run_info=False` leaves `run_info.json` alone (analysis sessions). `on_noticed` is
    told after each fold what went by, `on_progress` each snapshot. One that can't be written is warned of and tried
    again: it is derived.
    """

    def __init__(
        self,
        run_dir: Path,
        state: folding.State,
        take: Callable[[], list[bytes]],
        *,
        files: FileSystem = REAL,
        keeps_run_info: bool = True,
        on_noticed: Callable[[Noticed], None] = lambda noticed: None,
        on_progress: Callable[[Json], None] | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.problem: str | None = None
        self._state, self._take, self._files = state, take, files
        self._keeps_run_info, self._on_noticed, self._on_progress = keeps_run_info, on_noticed, on_progress
        self._fold_lock = threading.RLock()
        self._wake, self._closing = Bell(), threading.Event()
        self._noticed = Noticed()
        self._behind = False
        self._run_info_bytes = 0
        self._thread: threading.Thread | None = None

    # -- the thread

    def start(self) -> None:
        """Begin to follow."""
        self._thread = threading.Thread(target=self._run, name="compass-es snapshots", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There are new lines; called by the log for the first of them."""
        self._wake.ring()

    def close(self) -> None:
        """Stop the thread after a last write."""
        self._closing.set()
        self._wake.ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(_LOOK_SECONDS)  # by itself too: an interrupt may have swallowed the call that wakes
            if self._closing.is_set():
                return
            started = time.monotonic()
            try:
                self.refresh()
            except Exception:  # a fold must not end the following: the stream is the truth
                logger.exception("live snapshots of %s failed", self.run_dir)
            taken = time.monotonic() - started
            self._closing.wait(max(INTERVAL_SECONDS - taken, 4 * taken))

    # -- folding and writing

    def refresh(self, *, everything: bool = False) -> None:
        """Fold what is new and write what changed; `everything` writes both files whatever changed."""
        with self._fold_lock:
            folded = self.catch_up()
            if folded or everything or self._behind:
                self._write_progress()
            self._write_run_info(everything)

    def catch_up(self) -> int:
        """Fold what is new; the number of lines."""
        with self._fold_lock:
            lines = self._take()
            for start in range(0, len(lines), _CHUNK_LINES):
                self._fold(lines[start : start + _CHUNK_LINES])
                time.sleep(0)  # let an appending thread have the interpreter
            noticed = self._noticed
            if noticed.saved or noticed.artifacts:
                self._on_noticed(noticed)
                noticed.saved = noticed.artifacts = False
            return len(lines)

    def _fold(self, lines: list[bytes]) -> None:
        heads = decode_heads(lines)
        self.note(heads, lines)
        opening = [0] if session_writer(lines[0]) else []  # a log's first line, so the first of what it hands over
        first_seq = self._state.progress.counts.events
        folding.apply_block(self._state, Block(heads, lines, first_seq, 0, 0, sessions=opening))

    def note(self, heads: list[Any], lines: list[bytes]) -> None:
        """Look at what decides about files."""
        noticed, names = self._noticed, [head.event for head in heads]
        if "execution_plan_resolved" in names:
            plans = (line for name, line in zip(names, lines, strict=True) if name == "execution_plan_resolved")
            noticed.plan_bytes += sum(map(len, plans))
        noticed.status |= not _STATUS_EVENTS.isdisjoint(names)
        noticed.artifacts |= "metric_artifacts_written" in names
        noticed.saved |= "partial_saved" in names

    def keep_plans(self, plans: Json) -> None:
        """Add plans that have no event to run_info.json (those of reused attempts), and write it."""
        with self._fold_lock:
            stored = self._state.run_info.stored or {"schema_version": run_info.SCHEMA_VERSION}
            kept = {task: {"attempts": {**entry["attempts"]}} for task, entry in plans.items()}
            for task, entry in (stored.get("resolved_execution_plans") or {}).items():
                kept.setdefault(task, {"attempts": {}})["attempts"].update(entry.get("attempts") or {})
            self._state.run_info.stored = {**stored, "resolved_execution_plans": kept}
            self._write_run_info(True)

    @property
    def progress(self) -> Json:
        """What progress.json says, all appended lines included."""
        with self._fold_lock:
            self.catch_up()
            return progress.snapshot(self._state.progress)

    @property
    def run_info(self) -> Json | None:
        """What run_info.json says, all appended lines included."""
        with self._fold_lock:
            self.catch_up()
            return run_info.record(self._state.run_info)

    def _write_progress(self) -> None:
        if self._state.progress.counts.events:
            members = progress.snapshot(self._state.progress)
            self._behind = not self._replace(PROGRESS_NAME, codec.dump_pretty(members, sort_keys=False))
            if self._on_progress is not None:
                self._on_progress(members)

    def _write_run_info(self, everything: bool) -> None:
        noticed = self._noticed
        grown = noticed.plan_bytes > GROWTH * self._run_info_bytes
        if not self._keeps_run_info or not (everything or noticed.status or grown):
            return
        content = self._rendered_run_info()
        if content and self._replace(RUN_INFO_NAME, content):
            self._run_info_bytes = len(content)
            noticed.plan_bytes, noticed.status = 0, False

    def _rendered_run_info(self) -> bytes:
        info, pieces = run_info.record(self._state.run_info), []
        for piece in pretty_pieces(info) if info is not None else ():
            pieces.append(piece)
            if not len(pieces) % _CHUNK_PIECES:
                time.sleep(0)
        return b"".join(pieces)

    def _replace(self, name: str, content: bytes) -> bool:
        try:
            replace_file(self.run_dir / name, content, durable=False, files=self._files)
        except OutputError as error:
            if self.problem is None:
                logger.warning("%s (the stream has everything; it is tried again)", error)
            self.problem = error.message
            return False
        self.problem = None
        return True


def decode_heads(lines: list[bytes]) -> list[Any]:
    """The heads of lines of ours; events that nobody knows, and odd lines (NaN, lone surrogates), by slower ways."""
    array = b"[%b]" % b",".join(lines)
    for decoder in (_known_heads, _any_heads):
        try:
            return decoder.decode(array)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return [_head(line) for line in lines]


def _head(line: bytes) -> Head:
    members = codec.parse_object(line)
    return Head(members["run_id"], members["event"], members["timestamp"], codec.task_id_text(members))
