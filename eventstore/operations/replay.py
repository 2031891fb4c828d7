"""Replay of a run directory: scan its stream, fold it, and write the snapshots where they differ.

One of the composers of `eventstore` and `projections`. The rule is that replay never takes truth away: what it refuses
and why is in docs/replay.md.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from eventstore.errors import OutputError, UsageError
from eventstore.format.events import Json
from eventstore.format.records import VERDICTS, Block, Finding, Tail
from eventstore.run.directory import PROGRESS_NAME, RUN_INFO_NAME, StoredFile, open_run, read_json_file
from eventstore.run.liveness import Life, life_of
from eventstore.stream.atomic_file import back_up, replace_file
from eventstore.stream.filesystem import REAL, FileSystem
from eventstore.stream.lock import RunLock
from eventstore.stream.scan import STREAM_NAME, Scan, scan
from projections import Base, Snapshots, replay
from projections.snapshots.replay import ahead_of_stream, same_progress

from .parallel_replay import replay_stream

READABLE_SCHEMAS = ("agentcompass.run_info.v3",)


class Moment(Struct, frozen=True):
    """A point in a stream: after the first `events` records, or up to the last one at or before `timestamp`."""

    events: int | None = None
    timestamp: float | None = None


class Replayed(Struct, frozen=True):
    """What a replay found. `changed` names the files that differ from the fold, `written` those that were replaced.

    `refusals` says in words why nothing was written although something differs. `backups` are the originals' names.
    """

    run_dir: Path
    run_id: str | None
    events: int
    verdicts: dict[str, int]
    snapshots: Snapshots
    findings: list[Finding]
    tail: Tail
    life: Life | None
    changed: list[str]
    written: list[str]
    refusals: list[str]
    backups: list[str]
    problems: list[str]


def replay_run(
    path: str | os.PathLike[str],
    *,
    write: bool = True,
    force: bool = False,
    moment: Moment | None = None,
    out: Path | None = None,
    clock: Callable[[], float] = time.time,
    files: FileSystem = REAL,
) -> Replayed:
    """Fold the stream of a run directory, and unless refused replace the snapshots that differ from the fold.

    With `moment` the state at that point is computed and never written. With `out` the snapshots go to that folder
    and the run is left alone. Raises InputError if there is nothing to read and OutputError if a file can't be written.
    """
    run_dir = open_run(path)
    if moment is not None or out is not None or not write:
        replayed = _replay(run_dir, force, moment, clock)
        return _write_out(replayed, out) if out is not None else replayed
    replayed = _replay(run_dir, force, None, clock)
    if not replayed.changed or replayed.refusals:
        return replayed
    with RunLock(run_dir, temporary=True):
        # Once more under the lock: what was true before may not be now.
        return _write(_replay(run_dir, force, None, clock, locked=True), files)


def fold_run(run_dir: Path, moment: Moment | None = None) -> tuple[Snapshots, Scan | None, list[StoredFile]]:
    """Scan and fold a run with its stored files as the base; the scan is None where there is no stream."""
    files = [read_json_file(run_dir / name) for name in (PROGRESS_NAME, RUN_INFO_NAME)]
    base = Base(progress=files[0].members, run_info=files[1].members, moment=moment is not None)
    if not os.path.lexists(run_dir / STREAM_NAME):
        return replay([], base), None, files
    stream = scan(run_dir / STREAM_NAME)
    if moment is None:
        return replay_stream(stream, base), stream, files
    return replay(limit_stream(run_dir, stream, moment), base), stream, files


def limit_stream(run_dir: Path, stream: Scan, moment: Moment | None) -> "Scan | Prefix":
    """The records of a stream up to a moment; all of them for None."""
    if moment is None:
        return stream
    limit = moment.events if moment.events is not None else _events_until(run_dir, moment.timestamp)
    return Prefix(stream, limit)


def _replay(
    run_dir: Path, force: bool, moment: Moment | None, clock: Callable[[], float], locked: bool = False
) -> Replayed:
    snapshots, stream, (progress, run_info) = fold_run(run_dir, moment)
    verdicts = dict(stream.verdicts) if stream else {}
    changed = _changed(snapshots, progress, run_info) if stream and moment is None else []
    life = None
    refusals: list[str] = []
    if changed:
        life = None if locked else _life(run_dir, snapshots, stream, clock)
        refusals = _refusals(snapshots, progress, run_info, verdicts, life) if not force else []
        if _is_older_schema(run_info) and RUN_INFO_NAME in changed:
            refusals.append("run_info.json has an older schema: it is never rewritten in place, use --out")
    return Replayed(
        run_dir=run_dir,
        run_id=snapshots.run_id,
        events=snapshots.events,
        verdicts=verdicts,
        snapshots=snapshots,
        findings=stream.findings if stream else [],
        tail=stream.tail if stream else Tail(),
        life=life,
        changed=changed,
        written=[],
        refusals=refusals,
        backups=[],
        problems=[f"{file.path}: {file.problem}" for file in (progress, run_info) if file.problem],
    )


def _changed(snapshots: Snapshots, progress: StoredFile, run_info: StoredFile) -> list[str]:
    changed = []
    if snapshots.progress is not None and not same_progress(progress.members, snapshots.progress):
        changed.append(PROGRESS_NAME)
    if snapshots.run_info is not None and snapshots.run_info != run_info.members:
        changed.append(RUN_INFO_NAME)
    return changed


def _life(run_dir: Path, snapshots: Snapshots, stream: Scan | None, clock: Callable[[], float]) -> Life:
    progress: Json = snapshots.progress or {}
    return life_of(
        run_dir,
        finished=snapshots.run_info is not None and "status" in snapshots.run_info,
        damaged=stream is not None and stream.damaged,
        last_timestamp=progress.get("updated_at"),
        clock=clock,
    )


def _refusals(
    snapshots: Snapshots, progress: StoredFile, run_info: StoredFile, verdicts: dict[str, int], life: Life | None
) -> list[str]:
    refusals = []
    errors = [f"{count} {name}" for name, count in verdicts.items() if VERDICTS[name] == "error"]
    if errors:
        refusals.append(f"the stream is damaged ({', '.join(errors)}): see verify, then repair")
    ahead = ahead_of_stream(progress.members, snapshots.progress)
    if ahead:
        refusals.append(f"the stored snapshot is ahead of the stream: {ahead}")
    if life is not None and life.writing:
        refusals.append(f"the writer lives: {life.evidence[0]}")
    return refusals


def _is_older_schema(run_info: StoredFile) -> bool:
    members = run_info.members
    return members is not None and "schema_version" in members and members["schema_version"] not in READABLE_SCHEMAS


def _write(replayed: Replayed, files: FileSystem) -> Replayed:
    if replayed.refusals:
        return replayed
    backups, written = [], []
    for name in replayed.changed:
        path = replayed.run_dir / name
        backup = back_up(path, "replaced", files)
        if backup is not None:
            backups.append(backup.name)
            files.sync_folder(path.parent)  # else a crash can keep the replacement and lose the original's name
        replace_file(path, _rendered(replayed.snapshots, name), durable=True, files=files)
        written.append(name)
    return _with(replayed, written=written, backups=backups)


def _write_out(replayed: Replayed, out: Path) -> Replayed:
    if out.resolve() == replayed.run_dir.resolve():
        raise UsageError("--out must be another folder than the run's own", out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out}: can't be made: {error.strerror}", out) from None
    written = []
    for name in (PROGRESS_NAME, RUN_INFO_NAME):
        content = _rendered(replayed.snapshots, name)
        if content:
            replace_file(out / name, content, durable=True)
            written.append(name)
    REAL.sync_folder(out)
    return _with(replayed, written=written, refusals=[])


def _rendered(snapshots: Snapshots, name: str) -> bytes:
    return snapshots.rendered_progress if name == PROGRESS_NAME else snapshots.rendered_run_info


def _with(replayed: Replayed, **changes: Any) -> Replayed:
    return Replayed(**{name: getattr(replayed, name) for name in Replayed.__struct_fields__} | changes)


class Prefix:
    """The first records of a stream; the scan runs to its end all the same, so that its verdicts are whole."""

    def __init__(self, stream: Scan, limit: int) -> None:
        self._stream, self._limit = stream, limit

    def blocks(self) -> Iterator[Block]:
        left = self._limit
        for block in self._stream.blocks():
            if left >= len(block.heads):
                left -= len(block.heads)
                yield block
            elif left > 0:
                yield Block(
                    block.heads[:left],
                    block.lines[:left],
                    block.first_seq,
                    block.offset,
                    block.first_line,
                    sessions=[index for index in block.sessions if index < left],
                )
                left = 0


def _events_until(run_dir: Path, timestamp: float | None) -> int:
    """How many records stand up to the last one, in file order, whose timestamp is not later."""
    count = 0
    for block in scan(run_dir / STREAM_NAME).blocks():
        for index, head in enumerate(block.heads):
            if timestamp is not None and head.timestamp <= timestamp:
                count = block.first_seq + index + 1
    return count
