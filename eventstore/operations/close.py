"""Closing a run that died: its terminal event, appended by somebody else, after a look at whether its writer lives."""

import os
import socket
import time
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, structs

from eventstore.errors import CompassError, InputError, RefusedError, UsageError
from eventstore.format.events import TERMINAL_STATUSES, Json, RunFinished, RunFinishedPayload, RunStarted
from eventstore.format.records import Block
from eventstore.format.values import as_text, unix_time
from eventstore.redaction.events import Masker
from eventstore.redaction.redactor import secret_environment_values
from eventstore.run.liveness import Life, Liveness, life_of
from eventstore.run.run import Run
from eventstore.stream.filesystem import REAL, FileSystem
from eventstore.stream.lock import is_locked
from eventstore.stream.lock_file import read_witness
from eventstore.stream.log import EventLog
from eventstore.stream.recovery import boot_id
from eventstore.stream.scan import STREAM_NAME
from projections import Base
from projections.snapshots import counts, run_info
from projections.snapshots.run_info import iso_time

from .replay import replay_run

CLOSING_STATUSES = TERMINAL_STATUSES
"""The statuses that a run can be closed with."""
YOUNG_SECONDS = 60.0
"""A writer on another machine can't be asked; a stream that changed more recently is taken as being written."""


class Closed(Struct, frozen=True, kw_only=True):
    """A run that was given its end, with the evidence that nobody else would give it one."""

    run_dir: Path
    run_id: str
    status: str
    life: Life
    evidence: list[str]
    written: list[str]
    problems: list[str]


def close_run(
    path: str | os.PathLike[str],
    status: str,
    error: str | None = None,
    *,
    force: bool = False,
    clock: Callable[[], float] = time.time,
    files: FileSystem = REAL,
) -> Closed:
    """Append `run_finished` to a run that died, durably, and rebuild its snapshots.

    Raises RefusedError if the run has its terminal event, has no stream, its writer may live, or `run_info.json` says
    that it ended otherwise (unless `force`: the end that is given replaces the stored one); LockedError if the lock is
    held; DamagedError if the stream needs a repair first; UsageError for a status that no run ends with.
    """
    if status not in CLOSING_STATUSES:
        raise UsageError(f"a run ends as {', '.join(CLOSING_STATUSES)}, not as {status!r}")
    run = Run.open(path)
    run_dir = run.path
    ended, last_timestamp = _look(run)
    _refuse_ended(run_dir, ended)
    if not force:
        _refuse_contradiction(run, status)
    life = life_of(run_dir, last_timestamp=last_timestamp, clock=clock)
    evidence = [*life.evidence, *evidence_of(run_dir, last_timestamp, clock())]
    if life.writing or _may_live_elsewhere(run_dir, clock()):
        raise RefusedError(f"{run_dir}: its writer may live: {'; '.join(evidence)}", run_dir)
    run_id = _append(run, status, error, life, evidence, clock, files)
    written, problems = _rebuild(run_dir, clock, files)
    return Closed(
        run_dir=run_dir,
        run_id=run_id,
        status=status,
        life=life.life,
        evidence=evidence,
        written=written,
        problems=problems,
    )


def _look(run: Run) -> tuple[Json | None, float | None]:
    """Return the terminal event's members, if there is one, and the time of the last record that is no bookkeeping."""
    if not run.has_stream:
        raise RefusedError(f"{run.path}: has no stream: it failed before its first event, and there is nothing to end")
    state, counted = run_info.initial(Base()), counts.initial(Base())
    for block in run.blocks():
        run_info.apply_block(state, block)
        counts.apply_block(counted, block)
    if run.problem is not None:
        raise InputError(run.problem, run.path)
    return state.ended, counted.last_observed_at


def _refuse_ended(run_dir: Path, ended: Json | None) -> None:
    if ended is not None:
        raise RefusedError(
            f"{run_dir}: the run has its terminal event, {ended.get('status')}; "
            "compass-es replay rebuilds its snapshots",
            run_dir,
        )


def _refuse_contradiction(run: Run, status: str) -> None:
    """AgentCompass stores how a run ended before it emits the event: what is stored is known better than guessed."""
    info = run.files.run_info.members or {}
    stored = run_info.stored_end(info)
    if stored is not None and stored != status:
        when = f" at {info['finished_at']}" if info.get("finished_at") else ""
        raise RefusedError(
            f"{run.path}: {run.files.run_info.path.name} says that the run ended as {stored}{when}: close it as that, "
            "or contradict it with --force",
            run.path,
        )


def _may_live_elsewhere(run_dir: Path, now: float) -> bool:
    writer = read_witness(run_dir).writer
    if writer is None or writer.get("host") == socket.gethostname():
        return False
    return now - (run_dir / STREAM_NAME).stat().st_mtime < YOUNG_SECONDS


def _append(
    run: Run,
    status: str,
    error: str | None,
    life: Liveness,
    evidence: list[str],
    clock: Callable[[], float],
    files: FileSystem,
) -> str:
    members: Json = {"error": error} if error else {}
    members["closed"] = {"life": life.state, "evidence": evidence}
    payload = RunFinishedPayload(error=error if error else UNSET, extra=members)
    masker = Masker(secret_environment_values(os.environ))
    event = masker.mask(RunFinished(status=status, payload=payload))
    state, info = run_info.initial(Base()), run.files.run_info.members or {}

    def observe(block: Block) -> None:
        run_info.apply_block(state, block)

    with EventLog.open(
        run.path,
        durability="always",
        clock=clock,
        files=files,
        observe=observe,
        default_run_id=as_text(info.get("run_id")),
        scanned=run.stream,
    ) as log:
        _refuse_ended(run.path, state.ended)  # somebody may have been faster, before the lock was ours
        if not log.opened.records and info:
            log.append(masker.mask(_missing_start(info)))
        log.append(event)
        return log.run_id


def _missing_start(info: Json) -> RunStarted:
    """Return the first event of a run that died before it wrote one, as `run_info.json` has its beginning."""
    from eventstore.recording.session import stored_start  # late: the recorder costs start-up time

    start = stored_start(info)
    began = unix_time(info.get("started_at"))
    return start if began is None else structs.replace(start, timestamp=began)


def _rebuild(run_dir: Path, clock: Callable[[], float], files: FileSystem) -> tuple[list[str], list[str]]:
    try:
        replayed = replay_run(run_dir, clock=clock, files=files)
    except CompassError as error:
        return [], [str(error)]
    return replayed.written, replayed.refusals


def evidence_of(run_dir: Path, last_timestamp: float | None, now: float) -> list[str]:
    """Return what can be seen of a run's writer, fact by fact: lock, host, process and its start, boot, age."""
    locked = is_locked(run_dir)
    facts = [{True: "the lock is held", False: "the lock is free", None: "there is no lock file"}[locked]]
    writer = read_witness(run_dir).writer
    if writer is not None:
        facts += _writer_facts(writer, locked)
    if last_timestamp is not None:
        age = now - last_timestamp
        stepped = "clock stepped: the last event is yet to come"
        facts.append(f"the last event is {age:.0f} s old" if age >= 0 else stepped)
    changed = (run_dir / STREAM_NAME).stat().st_mtime
    facts.append(f"the stream was changed {now - changed:.0f} s ago")
    return facts


def _writer_facts(writer: Json, locked: bool | None) -> list[str]:
    host, pid, boot = writer.get("host"), writer.get("pid"), writer.get("boot")
    facts = [f"the last writer was process {pid} on host {host}, since {writer.get('opened_at')}"]
    if host != socket.gethostname():
        return [*facts, "that is another host: its processes can't be asked"]
    if boot and boot != boot_id():
        return [*facts, "the machine was started again since"]
    if boot:
        facts.append("the machine has not been started again since")
    started = process_started_at(pid)
    if started is None:
        return [*facts, f"there is no process {pid}"]
    opened, began = unix_time(writer.get("opened_at")), iso_time(started, UTC)
    if opened is not None and started > opened + 1:
        return [*facts, f"process {pid} is another one: it began at {began}"]
    let_go = ", and has let the lock go" if locked is False else ""
    return [*facts, f"process {pid}, begun at {began}, is still there{let_go}"]


def process_started_at(pid: Any) -> float | None:
    """Return when a process of this machine began, in Unix time; None if there is none, or the system doesn't say."""
    if not isinstance(pid, int) or isinstance(pid, bool):
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None
