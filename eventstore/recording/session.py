"""How a recorder's session begins: a reserved directory, the files that come first, the state that is already there."""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from msgspec import UNSET, Struct

from eventstore.errors import OutputError, RefusedError, UsageError
from eventstore.format import codec
from eventstore.format.events import Json, RunStarted, RunStartedPayload
from eventstore.format.records import Block, Recorded
from eventstore.format.seal import read_proof
from eventstore.redaction.redactor import redact, secret_environment_values
from eventstore.run.directory import PROGRESS_NAME, RUN_INFO_NAME, RUN_LOG_NAME, read_json_file
from eventstore.run.names import DETAILS_NAME
from eventstore.stream.atomic_file import replace_file
from eventstore.stream.filesystem import FileSystem
from eventstore.stream.lock import RunLock
from eventstore.stream.lock_file import NOTE_OFFSET, SLOT_BYTES, blank_note, read_witness, slot_offset
from eventstore.stream.log import EventLog, Settings
from eventstore.stream.scan import STREAM_NAME, scan
from projections import Base
from projections.snapshots import replay as folding
from projections.snapshots import run_info
from projections.timeline import unsaved_tasks

from .request import Request
from .run_log import RunLog


class RecorderSettings(Settings, frozen=True, kw_only=True):
    """The settings of a recorder: those of its log, the values to mask, and the level of `run.log`."""

    secrets: Sequence[str]
    """Values that are masked wherever they stand."""

    file_log_level: int | str | None = None
    """From which level on `run.log` is written; None leaves it to others."""


class Session(Struct):
    """What a recorder begins with. `owned` tells that every line of the stream is one of ours.

    `told` says which tasks were not told as saved, where a crash of ours can have left results half done.
    """

    run_dir: Path
    log: EventLog
    state: folding.State
    settings: RecorderSettings
    request: Request | None = None
    started: RunStarted | None = None
    run_log: RunLog | None = None
    finished: bool = False
    owned: bool = True
    keeps_run_info: bool = True
    told: unsaved_tasks.State | None = None


def reserve(run_dir: Path, files: FileSystem) -> RunLock:
    """Make the directory (or take an empty one) and its lock: of two who try, one succeeds.

    Raises RefusedError where a run is there already, OutputError where it can't be made.
    """
    try:
        files.make_folders(run_dir)
    except OSError as error:
        raise OutputError(f"{run_dir}: can't be made: {error.strerror}", run_dir) from None
    if not run_dir.is_dir():
        raise OutputError(f"{run_dir}: is a file, and a run is a folder", run_dir)
    lock = RunLock(run_dir)
    if any(os.path.lexists(run_dir / name) for name in (RUN_INFO_NAME, STREAM_NAME, PROGRESS_NAME)):
        lock.release()
        raise RefusedError(f"{run_dir}: holds a run already; open it, or choose another directory", run_dir)
    return lock


def new_session(
    run_dir: Path,
    lock: RunLock,
    request: Request | None,
    started: RunStarted,
    settings: RecorderSettings,
) -> Session:
    """Write the files that come before the first event, in the order of the specification, and an empty stream.

    Without a request it is a re-analysis, which leaves `run_info.json` alone. The lock is released on failure.
    """
    run_log = None
    try:
        if settings.file_log_level is not None:
            run_log = open_run_log(run_dir, settings.file_log_level, settings.secrets)
        if request is not None:
            _write_first_run_info(run_dir, started, settings.files)
        log = EventLog.open_as(run_dir, settings, run_id=started.run_id, lock=lock, owns_run_info=request is not None)
    except BaseException:
        lock.release()
        if run_log is not None:
            run_log.close()
        raise
    state = folding.initial(Base(run_info=read_json_file(run_dir / RUN_INFO_NAME).members))
    return Session(run_dir, log, state, settings, request, started, run_log, keeps_run_info=request is not None)


def open_run_log(run_dir: Path, level: int | str, secrets: Sequence[str]) -> RunLog:
    """Open `run.log`. Raises UsageError for a level that logging doesn't know."""
    try:
        return RunLog(run_dir / RUN_LOG_NAME, level, secrets=secrets)
    except ValueError as error:
        raise UsageError(f"file_log_level: {error}") from None


def _write_first_run_info(run_dir: Path, started: RunStarted, files: FileSystem) -> None:
    """The record before tasks are loaded: the fold of the event that is about to be appended."""
    state = run_info.initial(Base())
    content = run_info.render(run_info.apply(state, Recorded(seq=0, event=started, line=codec.encode(started))))
    replace_file(run_dir / RUN_INFO_NAME, content, durable=True, files=files)


def found_session(
    run_dir: Path,
    settings: RecorderSettings,
    *,
    owns_run_info: bool,
) -> Session:
    """Return a new session in an existing run, its state folded while the stream is scanned for opening."""
    lock = RunLock(run_dir)
    progress, info = (read_json_file(run_dir / name).members for name in (PROGRESS_NAME, RUN_INFO_NAME))
    state = folding.initial(Base(progress=progress, run_info=info))
    told = unsaved_tasks.initial(Base()) if (run_dir / DETAILS_NAME).is_dir() else None
    ours = read_witness(run_dir).writer is not None  # else it is AgentCompass's, which takes no lock and may be at work
    first: list[bytes] = []

    def observe(block: Block) -> None:
        if not first and block.lines:
            first.append(block.lines[0])
            if read_proof(block.lines[0]) is not None:
                state.progress.started_at = None  # our own streams tell exactly when they began
        folding.apply_block(state, block)
        if told is not None:
            unsaved_tasks.apply_block(told, block)

    known = info.get("run_id") if info is not None else None
    log = EventLog.open_as(
        run_dir,
        settings,
        lock=lock,
        observe=observe,
        default_run_id=known if isinstance(known, str) else None,
        owns_run_info=owns_run_info,
    )
    try:
        level = settings.file_log_level
        run_log = open_run_log(run_dir, level, settings.secrets) if level is not None else None
    except BaseException:
        log.close()
        raise
    owned = not first or read_proof(first[0]) is not None
    record = run_info.record(state.run_info)
    has_stored_end = bool(first) and run_info.stored_end(record) is not None
    return Session(
        run_dir=run_dir,
        log=log,
        state=state,
        settings=settings,
        request=_stored_request(record),
        started=_stored_start(state),
        run_log=run_log,
        finished=state.run_info.ended is not None or (owns_run_info and has_stored_end),
        owned=owned,
        keeps_run_info=not run_info.is_analysis_only(state.run_info),
        told=told if ours or owned else None,
    )


def _stored_request(info: Json | None) -> Request | None:
    try:
        return Request.from_members((info or {})["request"])
    except (KeyError, UsageError):
        return None


def _stored_start(state: folding.State) -> RunStarted | None:
    if state.run_info.started is None:
        return None
    event = codec.decode(codec.dump_compact(state.run_info.started))
    return event if isinstance(event, RunStarted) else None


def set_evaluation_aside(run_dir: Path, files: FileSystem) -> tuple[RunLock, str | None]:
    """Rename the stream to `progress.evaluation-<n>.jsonl` (a re-analysis's to `progress.analysis-<n>.jsonl`).

    Gives back the lock, and the stream's run id. What the lock file promised was about the stream that is now aside.
    """
    lock = RunLock(run_dir)
    try:
        # First, and durably: a mark that outlives its stream in a crash would be held against the new one.
        for turn in (0, 1):
            files.pwrite(lock.fd, b"\n".rjust(SLOT_BYTES), slot_offset(turn))
        files.pwrite(lock.fd, blank_note(), NOTE_OFFSET)
        files.fsync(lock.fd)
        return lock, _set_stream_aside(run_dir, files) if os.path.lexists(run_dir / STREAM_NAME) else None
    except OSError as error:
        lock.release()
        raise OutputError(f"{run_dir}: the stream can't be set aside: {error.strerror}", run_dir) from None
    except BaseException:
        lock.release()
        raise


def _set_stream_aside(run_dir: Path, files: FileSystem) -> str | None:
    state, found = run_info.initial(Base()), scan(run_dir / STREAM_NAME)
    for block in found.blocks():
        run_info.apply_block(state, block)
    word = "analysis" if run_info.is_analysis_only(state) else "evaluation"
    files.replace(run_dir / STREAM_NAME, _free_name(run_dir, word))
    files.sync_folder(run_dir)
    return found.run_id


def _free_name(run_dir: Path, word: str) -> Path:
    number = 1
    while os.path.lexists(path := run_dir / f"progress.{word}-{number}.jsonl"):
        number += 1
    return path


# -- What a recording begins with: the `run_started` event of a new run, of one found, of a re-analysis; the secrets


def run_started(
    request: Request, run_id: str, reused_from: Json | None, secrets: Sequence[str], now: float
) -> RunStarted:
    """Return the first event of a new run; it holds all that `run_info.json` says of the beginning."""
    members: Json = {name: getattr(request, name).id for name in ("benchmark", "harness", "environment", "model")}
    members["request"] = request.record(secrets)
    members["started_at"] = datetime.fromtimestamp(now).astimezone().isoformat(timespec="seconds")
    if reused_from:
        members["reused_from"] = redact(reused_from, secrets)
    started = RunStarted(run_id=run_id, timestamp=now, payload=started_payload(members))
    try:
        codec.encode(started)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the request can't be written as JSON: {error}") from None
    return started


def stored_start(info: Json) -> RunStarted:
    """Return the first event of a run that has only its `run_info.json` so far."""
    members = _stored_ids(info)
    members |= {name: info[name] for name in ("request", "started_at", "reused_from") if info.get(name)}
    return RunStarted(payload=started_payload(members))


def analysis_started(info: Json, run_id: str) -> RunStarted:
    """Return the first event of a re-analysis, under the id of the evaluation."""
    return RunStarted(run_id=run_id, payload=started_payload(_stored_ids(info) | {"analysis": True}))


def _stored_ids(info: Json) -> Json:
    request = info.get("request")
    sections: Json = request if isinstance(request, dict) else {}
    ids = {name: sections.get(name) for name in ("benchmark", "harness", "environment", "model")}
    return {name: part.get("id") for name, part in ids.items() if isinstance(part, dict)}


def started_payload(members: Json) -> RunStartedPayload:
    """Return the typed payload with these members; ones that it doesn't name are kept."""
    known = {name: v for name, v in members.items() if name in RunStartedPayload.__struct_fields__}
    return RunStartedPayload(**known, **({"extra": members} if known.keys() != members.keys() else {"extra": UNSET}))


def secrets_of(request: Request) -> tuple[str, ...]:
    """Return values to mask wherever they stand: this environment's, and the request's own key."""
    key = request.model.api_key
    own = (key,) if len(key) >= 8 and not key.startswith("${") else ()
    return secret_environment_values(os.environ) + own
