"""Replay of a run directory: scan its stream, fold it, and write the snapshots where they differ.

One of the composers of `eventstore` and `projections`. The rule is that replay never takes truth away: what it refuses
and why is in docs/replay.md.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, structs

from eventstore.errors import OutputError
from eventstore.format.records import Finding, Tail
from eventstore.format.values import as_number
from eventstore.run.directory import PROGRESS_NAME, RUN_INFO_NAME, StoredFile
from eventstore.run.liveness import Life, Liveness, life_of
from eventstore.run.output_path import check_snapshot_folder
from eventstore.run.run import Run
from eventstore.stream.atomic_file import back_up, mode_of, replace_file
from eventstore.stream.filesystem import REAL, FileSystem
from eventstore.stream.lock import RunLock
from eventstore.stream.moment import Moment
from eventstore.stream.scan import STREAM_NAME, scan
from projections import Snapshots
from projections.snapshots import replay
from projections.snapshots.replay import ahead_of_stream, same_progress

from .parallel_replay import replay_stream
from .view import damage_words, lost_words

READABLE_SCHEMAS = ("agentcompass.run_info.v3",)


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
    run = Run.open(path)
    before = run.identity()
    replayed = _replay(run, force, moment, clock)
    if moment is not None or out is not None or not write:
        return _write_out(replayed, out) if out is not None else replayed
    if not replayed.changed or replayed.refusals:
        return replayed
    with RunLock(run.path, temporary=True):
        if run.identity() != before:  # what was true before the lock was ours is not any more
            replayed = _replay(Run(run.path), force, None, clock, locked=True)
        return _write(replayed, files)


def _fold(run: Run, moment: Moment | None) -> Snapshots:
    """Fold a run's stream into both snapshots, with its stored files as the base."""
    if moment is not None or not run.has_stream:
        return replay.snapshots(run.fold(replay, at=moment)[0])
    run.stream = scan(run.path / STREAM_NAME)
    return replay_stream(run.stream, run.base())


def _replay(run: Run, force: bool, moment: Moment | None, clock: Callable[[], float], locked: bool = False) -> Replayed:
    snapshots = _fold(run, moment)
    progress, run_info, stream = run.files.progress, run.files.run_info, run.stream
    verdicts = dict(stream.verdicts) if stream else {}
    changed = _changed(snapshots, progress, run_info) if stream and moment is None else []
    life = None
    refusals: list[str] = []
    if changed:
        life = None if locked else _life(run, snapshots, clock)
        refusals = _refusals(snapshots, progress, run_info, verdicts, life) if not force else []
        if _is_older_schema(run_info) and RUN_INFO_NAME in changed:
            refusals.append("run_info.json has an older schema: it is never rewritten in place, use --out")
    elif moment is None and (lost := lost_words(run, snapshots.events)) is not None:
        refusals.append(lost)
    return Replayed(
        run_dir=run.path,
        run_id=snapshots.run_id,
        events=snapshots.events,
        verdicts=verdicts,
        snapshots=snapshots,
        findings=stream.findings if stream else [],
        tail=stream.tail if stream else Tail(),
        life=None if life is None else life.life,
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


def _life(run: Run, snapshots: Snapshots, clock: Callable[[], float]) -> Liveness:
    status = (snapshots.run_info or {}).get("status")
    return life_of(
        run.path,
        ended=None if status is None else f"the run ended as {status}",
        damage=damage_words(dict(run.stream.verdicts)) if run.stream is not None else None,
        last_timestamp=as_number((snapshots.progress or {}).get("updated_at")),
        clock=clock,
    )


def _refusals(
    snapshots: Snapshots, progress: StoredFile, run_info: StoredFile, verdicts: dict[str, int], life: Liveness | None
) -> list[str]:
    refusals = []
    damage = damage_words(verdicts)
    if damage is not None:
        refusals.append(f"{damage}: see verify, then repair")
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
        try:
            content, mode = _rendered(replayed.snapshots, name), mode_of(replayed.run_dir / STREAM_NAME)
            replace_file(path, content, durable=True, files=files, new_mode=mode)
        except OutputError:
            if backup is not None:  # the original has its own name still
                with suppress(OSError):
                    files.unlink(backup)
            raise
        written.append(name)
    return structs.replace(replayed, written=written, backups=backups)


def _write_out(replayed: Replayed, out: Path) -> Replayed:
    check_snapshot_folder(out, replayed.run_id)
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
    return structs.replace(replayed, written=written, refusals=[])


def _rendered(snapshots: Snapshots, name: str) -> bytes:
    return snapshots.rendered_progress if name == PROGRESS_NAME else snapshots.rendered_run_info
