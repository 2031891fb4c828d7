"""From changed run directories to rows in the tables of `store`: what to read, what to delete first, and by whom.

A stream that only grew is gone on with from its watermark; anything else is read anew. Large first builds are read by
several processes; DuckDB takes the rows of each while the others are still reading.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct

from eventstore.history.rows.read import read_run
from eventstore.history.rows.stream import keep, keep_reached, restore, unchanged_so_far
from eventstore.history.rows.tables import ALL_TABLES, PlacedRun
from eventstore.run.directory import RunDir
from eventstore.stream.scan import STREAM_NAME

from .spool import RefusedByDuckDB, Spool, load_folder, loading, make_folder, remove_folder
from .workers import Readers

CHUNK_BYTES = 64 * 1024 * 1024
"""Stream bytes that are loaded at once."""
SHARED_BYTES = 4 * CHUNK_BYTES
"""A longer stream is read where it is loaded, part by part: a worker would keep all of its rows in shared memory."""
WORKER_BYTES = 64 * 1024 * 1024
"""Below this many bytes to read, starting workers costs more than it gives."""


class Source(Struct):
    """One run to be read: `kept` is the state to go on from, None to read it from its front.

    `stale` tells that the tables have rows of it that go first.
    """

    run: PlacedRun
    signature: str
    size: int
    kept: bytes | None = None
    stale: bool = False


class Changes(Struct, kw_only=True):
    """What differs from the catalog: runs to read, and numbers of those that are gone."""

    sources: list[Source] = []
    removed: list[int] = []

    @property
    def none(self) -> bool:
        """True where the catalog is up to date."""
        return not (self.sources or self.removed)


def all_new(runs: dict[str, tuple[RunDir, str]]) -> Changes:
    """Return the changes that read every run from its front, into empty tables."""
    sources = [_source(key, run, seen, number) for number, (key, (run, seen)) in enumerate(runs.items(), 1)]
    return Changes(sources=sources)


def find_changes(connection: Any | None, runs: dict[str, tuple[RunDir, str]]) -> Changes:
    """Compare run directories with what the catalog has; without a connection everything is new."""
    known: dict[str, tuple[int, str]] = {}
    if connection is not None:
        rows = connection.execute("SELECT run_key, run_no, signature FROM store.main.sources").fetchall()
        known = {key: (number, seen) for key, number, seen in rows}
    changes = Changes()
    next_number = max((number for number, _ in known.values()), default=0) + 1
    changed: list[tuple[str, RunDir, str, int]] = []
    for key, (run, seen) in runs.items():
        number, before = known.pop(key, (0, ""))
        if before != seen:
            if number == 0:
                number, next_number = next_number, next_number + 1
            else:
                changed.append((key, run, seen, number))
                continue
            changes.sources.append(_source(key, run, seen, number))
    changes.removed = [number for number, _ in known.values()]
    _look_at_changed(connection, changed, changes)
    return changes


def _look_at_changed(connection: Any, changed: list[tuple[str, RunDir, str, int]], changes: Changes) -> None:
    if not changed:
        return
    numbers = [number for _, _, _, number in changed]
    states = dict(
        connection.execute(
            "SELECT run_no, state FROM store.main.sources WHERE run_no IN (SELECT unnest(?))", [numbers]
        ).fetchall()
    )
    for key, run, seen, number in changed:
        source = _source(key, run, seen, number)
        blob = states.get(number)
        kept = None if blob is None else restore(blob)
        if kept is not None and unchanged_so_far(source.run, kept.reached):
            source.size = max(0, source.size - kept.reached.offset)
            source.kept = blob
        else:
            source.stale = True
        changes.sources.append(source)


def _source(key: str, run: RunDir, seen: str, number: int) -> Source:
    try:
        size = (run.path / STREAM_NAME).stat().st_size
    except OSError:
        size = 0
    return Source(PlacedRun(number, key, run.path), seen, size)


# -- applying


def apply(
    connection: Any,
    changes: Changes,
    done: Any,
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    *,
    empty: bool = False,
) -> None:
    """Bring the tables of `store` up to date; `done` is told what was done.

    Tables that are `empty` are filled in one transaction: half the time, and half the size, of one for each chunk.
    """
    sources = changes.sources
    total = sum(source.size for source in sources)
    count = (min(os.cpu_count() or 1, 8) if workers is None else workers) if total > WORKER_BYTES else 1
    if changes.removed:
        with transaction(connection):
            _delete(connection, changes.removed, whole=True)
    if not (empty and _fill(connection, sources, count, _counter(progress, total))):
        _apply_chunks(connection, sources, count, _counter(progress, total), transaction)
    done.read, done.removed, done.bytes_read = len(sources), len(changes.removed), total
    done.appended = sum(source.kept is not None for source in sources)


def _fill(connection: Any, sources: list[Source], workers: int, tell: Callable[[int], None]) -> bool:
    """Put everything into empty tables; False where DuckDB refuses a line: then nothing is in them."""
    try:
        with transaction(connection):
            _apply_chunks(connection, sources, workers, tell, nullcontext)
    except RefusedByDuckDB:
        return False
    return True


Step: TypeAlias = Callable[[Any], AbstractContextManager[None]]
"""What a chunk is loaded in: a transaction of its own, or nothing where there is one around all of them."""


def _apply_chunks(
    connection: Any, sources: list[Source], workers: int, tell: Callable[[int], None], step: Step
) -> None:
    if workers > 1:
        shared = [source for source in sources if source.size <= SHARED_BYTES]
        sources = [source for source in sources if source.size > SHARED_BYTES]
        _apply_in_workers(connection, shared, workers, tell, step)
    for chunk in _chunks(sources, CHUNK_BYTES):
        _apply_here(connection, chunk, step)
        tell(sum(source.size for source in chunk))


@contextmanager
def transaction(connection: Any) -> Iterator[None]:
    """All of the block or nothing of it."""
    connection.execute("BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(Exception):
            connection.execute("ROLLBACK")
        raise


def _apply_here(connection: Any, chunk: list[Source], step: Step, *, as_lines: bool = True) -> None:
    """Read a chunk and load it; where DuckDB refuses lines that we accept, again without giving it lines."""
    try:
        with step(connection):
            _delete_old(connection, chunk)
            with loading(connection, "store.main", as_lines=as_lines) as spool:
                states = [read_source(source, spool) for source in chunk]
            _note_sources(connection, chunk, states)
    except RefusedByDuckDB:
        if step is not transaction or not as_lines:
            raise
        _apply_here(connection, chunk, step, as_lines=False)


def _delete_old(connection: Any, chunk: list[Source]) -> None:
    _delete(connection, [source.run.no for source in chunk if source.stale], whole=True)
    _delete(connection, [source.run.no for source in chunk if source.kept is not None], whole=False)


def _counter(progress: Callable[[int, int], None] | None, total: int) -> Callable[[int], None]:
    count = 0

    def tell(size: int) -> None:
        nonlocal count
        count += size
        if progress is not None:
            progress(count, total)

    return tell


def _delete(connection: Any, numbers: list[int], *, whole: bool) -> None:
    """Rows of runs that are gone or read anew; of one that only grew, all rows that a longer stream changes."""
    if not numbers:
        return
    listed = ", ".join(map(str, numbers))
    kept = (
        {}
        if whole
        else {
            "events": None,
            "retries": None,
            "phases": "ended_by IS NULL",
            "plans": "source = 'run_info'",
            "plan_texts": "plan_no < 0",
        }
    )
    for table in (*ALL_TABLES, "sources"):
        condition = kept.get(table, "true")
        if condition is not None:
            connection.execute(f"DELETE FROM store.main.{table} WHERE run_no IN ({listed}) AND {condition}")


def _note_sources(connection: Any, chunk: list[Source], states: list[bytes | None]) -> None:
    """The watermarks, in the same transaction as the rows they stand for."""
    for start in range(0, len(chunk), 200):
        values: list[Any] = []
        for source, state in zip(chunk[start : start + 200], states[start : start + 200], strict=True):
            run = source.run
            values += [run.no, run.key, os.fsencode(run.path), source.signature, state]
        marks = ", ".join(["(?, ?, ?, ?, ?)"] * (len(values) // 5))
        connection.execute(f"INSERT INTO store.main.sources VALUES {marks}", values)


def read_source(source: Source, spool: Spool) -> bytes | None:
    """Read one run into a spool; returns the state to keep for it: only unfinished runs are expected to grow.

    Of others the end that was reached is kept, for `verify` to tell whether what was read is still there.
    """
    found = read_run(source.run, spool, None if source.kept is None else restore(source.kept))
    if found.state is None:
        return None
    return keep_reached(found.state) if found.row.finished else keep(found.state)


def _apply_in_workers(
    connection: Any, sources: list[Source], workers: int, tell: Callable[[int], None], step: Step
) -> None:
    """Chunks of runs are read by processes into folders; this one loads the folders as they come."""
    parent = make_folder()
    try:
        with Readers(workers, read_chunk) as readers:
            waiting = _chunks(sources, min(CHUNK_BYTES, sum(source.size for source in sources) // (2 * workers)))
            running: dict[Future[list[bytes | None]], tuple[Path, list[Source]]] = {}
            number = 0
            while True:
                # A little more than one chunk for each worker: what is read must not outrun what is loaded by far.
                while len(running) < workers + 1 and (chunk := next(waiting, None)) is not None:
                    folder = parent / str(number)
                    folder.mkdir()
                    number += 1
                    running[readers.submit(folder, chunk)] = (folder, chunk)
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    folder, chunk = running.pop(future)
                    _load_chunk(connection, folder, chunk, future.result(), step)
                    shutil.rmtree(folder)
                    tell(sum(source.size for source in chunk))
    finally:
        remove_folder(parent)


def _load_chunk(connection: Any, folder: Path, chunk: list[Source], states: list[bytes | None], step: Step) -> None:
    try:
        with step(connection):
            _delete_old(connection, chunk)
            load_folder(connection, "store.main", folder)
            _note_sources(connection, chunk, states)
    except RefusedByDuckDB:
        if step is not transaction:
            raise
        _apply_here(connection, chunk, step, as_lines=False)


def read_chunk(folder: Path, chunk: list[Source]) -> list[bytes | None]:
    """Read runs into the files of a folder, in a process of its own."""
    spool = Spool(folder)
    try:
        states = [read_source(source, spool) for source in chunk]
        spool.flush()
    finally:
        spool.close()
    return states


def _chunks(sources: list[Source], limit: int) -> Iterator[list[Source]]:
    chunk: list[Source] = []
    size = 0
    for source in sources:
        chunk.append(source)
        size += source.size + 4096
        if size > limit:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
