"""Repair of a damaged stream: first a plan, then, if asked for, the plan carried out (docs/repair.md).

    repaired = repair_run(run_dir)               # changes nothing
    repaired = repair_run(run_dir, apply=True)

The repaired stream is built beside the damaged one, checked by the same scan that judges every stream, and takes its
name by one rename; the damaged one stays under a name of its own. So an interrupt at any moment leaves one or the
other whole, and a second call ends what the first began.
"""

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs

from eventstore.errors import CompassError, DamagedError, LockedError, OutputError, RefusedError
from eventstore.format.events import Json
from eventstore.format.seal import read_proof
from eventstore.operations.replay import replay_run
from eventstore.operations.view import damage_words
from eventstore.run.directory import RUN_INFO_NAME, open_run, read_json_file
from eventstore.run.liveness import Liveness, life_of
from eventstore.run.names import DETAILS_NAME
from eventstore.stream.atomic_file import TEMPORARY_PREFIX, mode_of
from eventstore.stream.filesystem import REAL, FileSystem
from eventstore.stream.line_reader import open_regular
from eventstore.stream.lock import RunLock
from eventstore.stream.lock_file import read_witness
from eventstore.stream.recovery import copy_range
from eventstore.stream.scan import STREAM_NAME, Scan
from projections.repair_plan import Layout, Piece, Row, Step, in_order, lay_out
from projections.timeline import unsaved_tasks

from .files import Assessment, Backup, assess, find_backup, keep_backup, repair_line, set_aside, write_marks
from .results import pending_results, recover_results

TEMPORARY_NAME = f"{TEMPORARY_PREFIX}{STREAM_NAME}.repair"


class EventCounts(Struct, frozen=True):
    """Events after the repair. `certain` prove themselves; `inferred` were read whole, but nothing proves them.

    `lost` are those whose numbers are missing, or, where there are no numbers, lines that could not be read.
    """

    certain: int = 0
    inferred: int = 0
    lost: int = 0


class Repaired(Struct, frozen=True, kw_only=True):
    """What repair found and did. `promised` says which events are gone although a witness proves they were there.

    `backup`, `set_aside` are the names of files in the run directory that hold the damaged stream and the bytes that
    were taken out; `snapshots` those that were rebuilt; `problems` what could not be finished. `results` is what
    a crash left to be done among task results; `results_done` tells that it is done.
    """

    run_dir: Path
    run_id: str | None
    steps: list[Step]
    events: EventCounts
    promised: list[str]
    applied: bool = False
    backup: str | None = None
    set_aside: str | None = None
    verdicts: dict[str, int]
    snapshots: list[str] = []
    problems: list[str] = []
    results: list[str] = []
    results_done: bool = False


class _Examined(Struct):
    found: Scan | None
    layout: Layout
    salvaged: int = 0
    ended: bool = False
    last_timestamp: float | None = None
    repaired_last: bool = False
    unsaved: unsaved_tasks.State = field(default_factory=unsaved_tasks.State)

    @property
    def needed(self) -> bool:
        """True where anything is wrong; a torn tail alone is not: the next writer sets it aside."""
        return any(step.action != "cut" for step in self.layout.steps)


def repair_run(
    path: str | os.PathLike[str],
    *,
    apply: bool = False,
    accept_loss: bool = False,
    clock: Callable[[], float] = time.time,
    files: FileSystem = REAL,
) -> Repaired:
    """Plan the repair of a run's stream and half-done task results, and with `apply` carry it out.

    Raises RefusedError while the writer lives, and where events are gone that were promised (unless `accept_loss`);
    LockedError where the lock is held; InputError and OutputError where files can't be read or written.
    """
    run_dir = open_run(path)
    examined = _examine(run_dir)
    if not apply:
        plan = _plan_only(run_dir, examined)
        live = os.path.lexists(run_dir / DETAILS_NAME) and _life(run_dir, examined, clock).writing
        return plan if live else structs.replace(plan, results=pending_results(run_dir, examined.unsaved))
    _refuse_live(run_dir, examined, clock)
    repaired, told = _repair_stream(run_dir, examined, accept_loss, clock, files)
    return _with_results(repaired, told)


def _repair_stream(
    run_dir: Path, examined: _Examined, accept_loss: bool, clock: Callable[[], float], files: FileSystem
) -> tuple[Repaired, unsaved_tasks.State | None]:
    """Repair the stream where it needs it; with what it says of saved tasks, unless its lines took another order."""
    if not examined.needed and not examined.repaired_last:
        return _nothing(run_dir, examined), examined.unsaved
    with RunLock(run_dir) as lock:
        if examined.found is None or not examined.found.is_current:
            examined = _examine(run_dir)  # what was true before the lock was ours may not be now
        done = _apply(run_dir, examined, lock, accept_loss, clock, files) if examined.needed else None
        if done is None and examined.found is not None and examined.found.mark_superseded:
            end = examined.found.bytes - examined.found.tail.torn_bytes
            write_marks(lock.fd, end, examined.found.chain.last, files)
    moved = examined.found is not None and bool(examined.found.chain.displaced)
    return _rebuild(done or _nothing(run_dir, examined), clock, files), None if moved else examined.unsaved


# -- looking


def _examine(run_dir: Path) -> _Examined:
    path = run_dir / STREAM_NAME
    if not os.path.lexists(path):
        return _missing(run_dir, path)
    found = _scan_as(path, None)
    if found.found is not None and found.found.verdicts["foreign_run"]:
        found = _as_the_right_run(run_dir, path, found)
    return found


def _missing(run_dir: Path, path: Path) -> _Examined:
    mark = read_witness(run_dir).mark
    steps = []
    if mark is not None:
        words = f"the stream is gone, and {mark.bytes} bytes of it were on stable storage: begin an empty one"
        steps = [Step(action="accept_loss", code="lost_acknowledged", message=words, seq=mark.seq)]
    return _Examined(None, Layout([], [], steps))


def _scan_as(path: Path, run_id: str | None) -> _Examined:
    """Read a stream, as that of `run_id` if one is given."""
    found = Scan(path, max_findings=None)
    found.run_id = run_id
    examined = _Examined(found, Layout([], [], []))
    salvaged: list[tuple[int, int]] = []
    for block in found.blocks():
        unsaved_tasks.apply_block(examined.unsaved, block)
        for head in block.heads:
            if head.event in ("run_started", "run_finished"):
                examined.ended = head.event == "run_finished"
        told = (head.timestamp for head in reversed(block.heads) if head.event != "stream_repaired")
        examined.last_timestamp = next(told, examined.last_timestamp)  # a repair is no sign of the run's writer
        examined.repaired_last = block.heads[-1].event == "stream_repaired"
        if block.offsets is not None:
            rows = zip(block.offsets, block.lines, strict=True)
            salvaged += [(offset, offset + len(line)) for offset, line in rows if not line.endswith(b"\n")]
    examined.layout = lay_out(found.findings, salvaged, found.bytes, frozenset(found.chain.displaced))
    examined.salvaged = len(salvaged)
    return examined


def _as_the_right_run(run_dir: Path, path: Path, first: _Examined) -> _Examined:
    """A stream belongs to the run that `run_info.json` names if it has lines of it, else to the run with most lines."""
    assert first.found is not None
    named = (read_json_file(run_dir / RUN_INFO_NAME).members or {}).get("run_id")
    if named == first.found.run_id:
        return first
    other = _scan_as(path, named) if isinstance(named, str) else None
    if other is not None and other.found is not None and other.found.records:
        return other
    return first


def _plan_only(run_dir: Path, examined: _Examined) -> Repaired:
    if not examined.needed:
        return _nothing(run_dir, examined)
    with tempfile.TemporaryDirectory(prefix="compass-es-") as folder:
        target = Path(folder) / "stream"
        try:
            assessed = _build(run_dir, examined, target, REAL)
        except OSError as error:
            words = f"{run_dir}: the plan needs room for a copy in {folder}: {error.strerror}"
            raise OutputError(words, run_dir) from None
    return _report(run_dir, examined, assessed)


def _build(run_dir: Path, examined: _Examined, target: Path, files: FileSystem) -> Assessment:
    """Write what is kept to `target`, and look at it as any reader will."""
    pieces = examined.layout.pieces
    if examined.found is not None and examined.found.chain.displaced:
        pieces = _ordered(run_dir / STREAM_NAME, examined.found.run_id)
    _write_pieces(run_dir / STREAM_NAME, pieces, target, files)
    mark = examined.found.mark if examined.found else read_witness(run_dir).mark
    superseded = examined.found is not None and examined.found.mark_superseded
    assessed = assess(target, None if superseded else mark)
    rivals = _rivals(run_dir / STREAM_NAME, examined)
    return structs.replace(assessed, promised=[*assessed.promised, *rivals]) if rivals else assessed


def _rivals(path: Path, examined: _Examined) -> list[str]:
    """Say which lines, to be set aside as repeated, are other events under a number that is taken: two writers' work.

    Both were acknowledged, so taking one out is a loss that somebody has to accept.
    """
    places = [step for step in examined.layout.steps if step.code == "repeated" and step.seq is not None]
    if not places:
        return []
    numbers, kept = {step.seq for step in places}, set()
    scanned = Scan(path, max_findings=0)
    scanned.run_id = examined.found.run_id if examined.found else None
    for block in scanned.blocks():
        for line in block.lines:
            proof = read_proof(line)
            if proof is not None and proof.seq in numbers:
                kept.add((proof.seq, proof.xxh3))
    words = []
    with open(path, "rb") as stream:
        for step in places:
            stream.seek(step.offset or 0)
            proof = read_proof(stream.read(step.length or 0))
            if proof is not None and (proof.seq, proof.xxh3) not in kept:
                words.append(f"another writer's event with number {proof.seq} stands at byte {step.offset}")
    return words


def _write_pieces(path: Path, pieces: list[Piece], target: Path, files: FileSystem) -> None:
    source = open_regular(path) if pieces else -1
    try:
        with suppress(FileNotFoundError):
            files.unlink(target)  # of an interrupted repair, or planted: whatever it is, it is not written to
        fd = files.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode_of(path))
        try:
            for piece in pieces:
                copy_range(source, fd, piece.start, piece.end, files)
                if piece.newline:
                    files.write_all(fd, b"\n")
        finally:
            files.close(fd)
    finally:
        if source >= 0:
            os.close(source)


def _ordered(path: Path, run_id: str | None) -> list[Piece]:
    found = Scan(path, max_findings=0)
    found.run_id = run_id
    rows = (
        Row(record.offset, record.offset + record.length, _number(record.line), not record.line.endswith(b"\n"))
        for record in found
    )
    return in_order(rows)


def _number(line: bytes) -> int | None:
    proof = read_proof(line)
    return None if proof is None else proof.seq


def _report(run_dir: Path, examined: _Examined, assessed: Assessment, **more: Any) -> Repaired:
    kept = examined.found.records if examined.found else 0
    unreadable = sum(step.code in ("corrupt_line", "digest_mismatch", "glued_line") for step in examined.layout.steps)
    events = EventCounts(
        certain=assessed.sealed,
        inferred=kept - assessed.sealed,
        lost=assessed.missing if assessed.sealed else unreadable,
    )
    found = examined.found
    return Repaired(
        run_dir=run_dir,
        run_id=found.run_id if found else None,
        steps=examined.layout.steps,
        events=events,
        promised=assessed.promised,
        verdicts=dict(found.verdicts) if found else {},
        **more,
    )


def _nothing(run_dir: Path, examined: _Examined) -> Repaired:
    found = examined.found
    return Repaired(
        run_dir=run_dir,
        run_id=found.run_id if found else None,
        steps=[],
        events=EventCounts(),
        promised=[],
        verdicts=dict(found.verdicts) if found else {},
    )


def _life(run_dir: Path, examined: _Examined, clock: Callable[[], float]) -> Liveness:
    return life_of(
        run_dir,
        ended="the stream has its terminal event" if examined.ended else None,
        damage=damage_words(dict(examined.found.verdicts)) if examined.found is not None else None,
        last_timestamp=examined.last_timestamp,
        clock=clock,
    )


def _refuse_live(run_dir: Path, examined: _Examined, clock: Callable[[], float]) -> None:
    life = _life(run_dir, examined, clock)
    if life.writing:
        raise RefusedError(f"{run_dir}: the writer lives: {life.evidence[0]}; nothing is changed", run_dir)


# -- doing


def _apply(
    run_dir: Path,
    examined: _Examined,
    lock: RunLock,
    accept_loss: bool,
    clock: Callable[[], float],
    files: FileSystem,
) -> Repaired:
    path, target = run_dir / STREAM_NAME, run_dir / TEMPORARY_NAME
    try:
        assessed = _build(run_dir, examined, target, files)
        if assessed.promised and not accept_loss:
            raise RefusedError(
                f"{run_dir}: the repaired stream would lack events that were acknowledged ({assessed.promised[0]}); a "
                "backup may hold them, and --accept-loss goes on without them",
                run_dir,
            )
        backup = find_backup(path)
        payload = _payload(examined, assessed, backup)
        run_id = examined.found.run_id if examined.found else None
        line, link = repair_line(run_dir, run_id, assessed, payload, clock())
        _finish_building(target, line, files)
        keep_backup(path, backup, files)  # first: it decides the number that what is set aside has as well
        aside = set_aside(path, examined.layout.aside, backup, files)
        _check_unchanged(path, examined)
        files.replace(target, path)
        files.sync_folder(run_dir)  # without it the rename itself can be lost
        write_marks(lock.fd, assessed.bytes + len(line), link, files)
    except OSError as error:
        _discard(target, files)
        raise OutputError(f"{error.filename or path}: can't be written: {error.strerror}", path) from None
    except CompassError:
        _discard(target, files)
        raise
    name = backup.name if backup.digest is not None else None
    return _report(run_dir, examined, assessed, applied=True, backup=name, set_aside=aside)


def _payload(examined: _Examined, assessed: Assessment, backup: Backup) -> Json:
    """Return what the `stream_repaired` record says; its members are described in docs/repair.md."""
    aside = examined.layout.aside
    payload: Json = {
        "removed": assessed.removed,
        "set_aside": {"bytes": sum(end - start for start, end in aside), "ranges": len(aside)},
        "kept": {"events": examined.found.records if examined.found else 0, "salvaged": examined.salvaged},
        "verdicts": dict(examined.found.verdicts) if examined.found else {"lost_acknowledged": 1},
    }
    if backup.digest is not None:
        payload["backup"] = {"file": backup.name, "bytes": backup.bytes, "xxh3": backup.digest}
    if assessed.vouched is not None:
        payload["vouched"] = assessed.vouched
    if assessed.mark is not None:
        payload["mark"] = {"seq": assessed.mark.seq, "bytes": assessed.mark.bytes, "xxh3": assessed.mark.xxh3}
    return payload


def _finish_building(target: Path, line: bytes, files: FileSystem) -> None:
    fd = files.open(target, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    try:
        files.write_all(fd, line)
        files.fsync(fd)
    finally:
        files.close(fd)
    left = assess(target, None).verdicts
    if left:
        raise DamagedError(f"{target}: the repaired stream would still have {left}; nothing is changed", target)


def _check_unchanged(path: Path, examined: _Examined) -> None:
    if examined.found is not None and path.stat().st_size != examined.found.bytes:
        raise RefusedError(f"{path}: somebody is writing: it changed while it was repaired; nothing is changed", path)


def _discard(target: Path, files: FileSystem) -> None:
    with suppress(OSError):
        files.unlink(target)


def _with_results(repaired: Repaired, told: unsaved_tasks.State | None) -> Repaired:
    """Return what was recovered of the task results; their missing events are appended to the repaired stream."""
    results = pending_results(repaired.run_dir, told)
    if not results:
        return repaired
    try:
        recover_results(repaired.run_dir, thorough=False)
    except CompassError as error:
        problems = [*repaired.problems, f"task results are left as they were: {error}"]
        return structs.replace(repaired, results=results, problems=problems)
    return structs.replace(repaired, results=results, results_done=True)


def _rebuild(repaired: Repaired, clock: Callable[[], float], files: FileSystem) -> Repaired:
    """Snapshots that knew more than the repaired stream are replaced as well; replay keeps the originals."""
    snapshots: list[str] = []
    problems: list[str] = []
    try:
        replayed = replay_run(repaired.run_dir, force=True, clock=clock, files=files)
        snapshots, problems = replayed.written, replayed.refusals
    except (LockedError, OutputError) as error:
        problems = [f"the snapshots are not rebuilt: {error}"]
    members: Json = {name: getattr(repaired, name) for name in Repaired.__struct_fields__}
    return Repaired(**members | {"snapshots": snapshots, "problems": problems})
