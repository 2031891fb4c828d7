"""One run directory to rows: its stream once through scan and the folds, its small files through their readers.

The same scanner and folds as everything else, so that SQL sees exactly the records that scan accepted and counts as
`replay` does. Rows go to a sink in batches: a stream of gigabytes never stands in memory.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct

from projections import Base, counts, progress, run_info, timeline
from projections import plans as plans_fold
from projections.timeline import Moment

from .. import codec
from ..errors import InputError
from ..events import ENVELOPE, Json
from ..records import Block, Finding
from ..rundir import PARAMS_NAME, PROGRESS_NAME, RUN_INFO_NAME, RUN_LOG_NAME, RunDir, StoredFile, read_json_file
from ..scan import STREAM_NAME, Scan
from .logs import log_rows
from .params import param_rows
from .plans import PlanReader, stored_plan_rows
from .results import METRICS_NAME, file_problem, headline, result_rows
from .tables import DamageRow, EventRow, ResultRow, RunRow
from .values import as_float, as_int, json_text, text

_REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decoder = msgspec.json.Decoder(list[EventRow])


class Sink(Protocol):
    """Where rows go. `events` takes rows of the events table, `rows` those of all others."""

    def events(self, rows: list[EventRow]) -> None: ...
    def rows(self, run_key: str, rows: Iterable[Struct]) -> None: ...


class _Run:
    """What is gathered of one run on the way through its stream."""

    def __init__(self, run: RunDir, progress_file: StoredFile, run_info_file: StoredFile) -> None:
        stored = {k: v for k, v in (run_info_file.members or {}).items() if k != "resolved_execution_plans"}
        base = Base(progress=progress_file.members, run_info=stored if run_info_file.members is not None else None)
        self.run = run
        self.key = key_text(run.run_key)
        self.stored: Json = run_info_file.members or {}
        self.progress = progress.initial(base)
        self.run_info = run_info.initial(base)
        self.timeline = timeline.initial(base)
        self.plans = PlanReader()
        self.retries = 0
        self.first: EventRow | None = None
        self.last_event_at: float | None = None


def key_text(run_key: str) -> str:
    """A run key as SQL can hold it: bytes of a name that are no UTF-8 become visible escapes."""
    return run_key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_run(run: RunDir, sink: Sink) -> RunRow:
    """Send all rows of a run to the sink; returns its row of `runs`. Never raises for what is in the directory."""
    names = (PROGRESS_NAME, RUN_INFO_NAME, PARAMS_NAME)
    files = {name: read_json_file(run.path / name) for name in (*names, METRICS_NAME)}
    state = _Run(run, files[PROGRESS_NAME], files[RUN_INFO_NAME])
    damage = [problem for name in names if (problem := file_problem(run.path, files[name])) is not None]
    scan = _read_stream(run, state, sink, damage)
    sink.rows(state.key, state.plans.rows(timeline.rows(state.timeline)))
    sink.rows(state.key, stored_plan_rows(state.stored, state.plans.seen))
    sink.rows(state.key, param_rows(state.stored, files[PARAMS_NAME].members))
    task_ids = set(state.timeline.tasks) | _send_results(run, state, sink)
    row = _run_row(state, scan, damage, files[METRICS_NAME].members or {})
    _send_log(run, state, sink, damage, task_ids)
    sink.rows(state.key, damage)
    sink.rows(state.key, [row])
    return row


def _read_stream(run: RunDir, state: _Run, sink: Sink, damage: list[DamageRow]) -> Scan | None:
    path = run.path / STREAM_NAME
    if not os.path.lexists(path):
        return None
    try:
        scan = Scan(path, max_findings=None)
    except InputError as error:
        damage.append(_unreadable(STREAM_NAME, error, path))
        return None
    try:
        for block in scan.blocks():
            _read_block(state, block, sink)
    except OSError as error:
        damage.append(_unreadable(STREAM_NAME, InputError(f"can't be read to its end: {error.strerror}"), path))
    damage.extend(_damage_row(finding) for finding in scan.findings if finding.code != "unsealed")
    return scan


def _unreadable(file: str, error: InputError, path: Path) -> DamageRow:
    message = error.message.removeprefix(f"{path}: ")
    return DamageRow(file=file, code="unreadable_file", severity="error", message=text(message) or "")


def _damage_row(finding: Finding) -> DamageRow:
    return DamageRow(
        file=STREAM_NAME,
        line=finding.line,
        offset=finding.offset,
        length=finding.length,
        code=finding.code,
        severity=finding.severity,
        message=text(finding.message) or "",
        seq=finding.seq,
    )


def _read_block(state: _Run, block: Block, sink: Sink) -> None:
    progress.apply_block(state.progress, block)
    run_info.apply_block(state.run_info, block)
    state.run_info.plans = plans_fold.State()  # the plans have rows of their own
    rows = event_rows(block)
    timeline.apply_facts(state.timeline, rows, block.first_seq)  # type: ignore[arg-type]
    if state.first is None:
        state.first = rows[0]
    state.last_event_at = rows[-1].timestamp
    state.retries += sum(row.event == "attempt_retry" for row in rows)
    place_rows(rows, block, state.key)
    sink.events(rows)
    ended = timeline.take_ended(state.timeline)
    if ended:
        sink.rows(state.key, state.plans.rows(ended))


def event_rows(block: Block) -> list[EventRow]:
    """The rows of a batch of accepted lines; their place is not set yet."""
    try:
        return _decoder.decode(b"[%b]" % b",".join(block.lines))
    except _REFUSALS:
        return [_odd_row(head, line) for head, line in zip(block.heads, block.lines, strict=True)]


def _odd_row(head: Any, line: bytes) -> EventRow:
    """A line that doesn't fit the columns: odd values become text, numbers that no column holds become NULL."""
    event = codec.decode_accepted(line, head)
    members = codec.envelope_members(event)
    extra = {name: value for name, value in members.items() if name not in ENVELOPE}
    return EventRow(
        run_id=text(members["run_id"]) or "",
        event=text(members["event"]) or "",
        timestamp=as_float(members["timestamp"]),
        attempt=as_int(members["attempt"]),
        request_index=as_int(members["request_index"]),
        payload=Raw(payload_text(line) or json_text(members["payload"]) or "{}"),
        extra=json_text(extra) if extra else None,
        task_id=text(members["task_id"]),
        category=text(members["category"]),
        phase=text(members["phase"]),
        status=text(members["status"]),
        orchestration_id=text(members["orchestration_id"]),
        request_key=text(members["request_key"]),
        request_name=text(members["request_name"]),
    )


class _Payload(Struct, gc=False):
    payload: Raw = Raw(b"{}")


_payload_decoder = msgspec.json.Decoder(_Payload)


def payload_text(line: bytes) -> str | None:
    """The payload of a line exactly as it stands there, where the strict reader gets that far."""
    try:
        return bytes(_payload_decoder.decode(line.removeprefix(codec.BYTE_ORDER_MARK)).payload).decode("utf-8")
    except _REFUSALS:
        return None


def place_rows(rows: list[EventRow], block: Block, run_key: str) -> None:
    """Give rows their place, and their payloads as text."""
    seq, offset, number = block.first_seq, block.offset, block.first_line
    for index, row in enumerate(rows):
        if block.offsets is not None and block.line_numbers is not None:
            offset, number = block.offsets[index], block.line_numbers[index]
        row.run_key, row.seq, row.line, row.offset, row.log = run_key, seq, number, offset, UNSET
        # Encoded as a string from here on, so that DuckDB takes any JSON in it and changes nothing.
        row.payload = bytes(row.payload).decode("utf-8")  # type: ignore[assignment]
        offset += len(block.lines[index])
        number += 1
        seq += 1


def _send_results(run: RunDir, state: _Run, sink: Sink) -> set[str]:
    batch: list[Struct] = []
    task_ids: set[str] = set()
    for row in result_rows(run.path):
        batch.append(row)
        if isinstance(row, ResultRow):
            task_ids.add(row.task_id)
        if len(batch) >= 1000:
            sink.rows(state.key, batch)
            batch = []
    sink.rows(state.key, batch)
    return task_ids


def _send_log(run: RunDir, state: _Run, sink: Sink, damage: list[DamageRow], task_ids: set[str]) -> None:
    path = run.path / RUN_LOG_NAME
    if not os.path.lexists(path):
        return
    started_at = state.stored.get("started_at")
    try:
        sink.rows(state.key, log_rows(path, started_at if isinstance(started_at, str) else None, task_ids))
    except InputError as error:
        damage.append(_unreadable(RUN_LOG_NAME, error, path))


# -- the row of `runs`


def _run_row(state: _Run, scan: Scan | None, damage: list[DamageRow], metrics: Json) -> RunRow:
    folded = progress.snapshot(state.progress)
    info = run_info.record(state.run_info) or {}
    events = state.progress.counts.events
    request = _object(info.get("request"))
    execution = _object(request.get("execution"))
    attempts = _object(execution.get("attempts"))
    reused = _object(info.get("reused_from"))
    ended = state.run_info.ended
    row = RunRow(
        path=key_text(str(state.run.path)),
        run_id=text(folded["run_id"] if events else info.get("run_id")),
        status=text(folded["status"] if events else info.get("status")),
        finished="status" in info,
        error=text(info.get("error")),
        score=headline(metrics),
        attempts_k=as_int(attempts.get("k")),
        attempts_strategy=text(attempts.get("strategy")),
        reused_from_run_id=text(reused.get("run_id")),
        reused_from_path=text(reused.get("path")),
        schema_version=text(state.stored.get("schema_version")),
        stored_status=text(state.stored.get("status")),
        analysis_only=run_info.is_analysis_only(state.run_info),
        retries=state.retries,
        events=events,
        damaged=sum(row.severity == "error" and row.file == STREAM_NAME for row in damage),
        request=json_text(info.get("request")),
        metric_artifacts=json_text(info.get("metric_artifacts")),
        problem=_problem_words(damage),
    )
    for name in ("benchmark", "harness", "environment", "model"):
        setattr(row, name, text(folded[name]))
    for name in counts.COUNTERS:
        setattr(row, name, folded[name])
    if scan is not None:
        row.sealed, row.torn_bytes, row.bytes = scan.sealed, scan.tail.torn_bytes, scan.bytes
    _set_times(row, state, info, ended)
    return row


def _set_times(row: RunRow, state: _Run, info: Json, ended: Json | None) -> None:
    """Times of the stream where it has them, else those of run_info.json."""
    first = state.first
    if first is not None:
        row.orchestration_id, row.request_key = first.orchestration_id, first.request_key
        row.request_name, row.request_index = first.request_name, first.request_index
    started = first.timestamp if first is not None else _iso(info.get("started_at"))
    finished = as_float(ended["timestamp"]) if ended is not None else _iso(info.get("finished_at"))
    last = state.last_event_at
    row.started_at, row.finished_at, row.last_event_at = (
        None if moment is None else Moment(moment) for moment in (started, finished, last)
    )
    end = finished if finished is not None else last
    row.seconds = None if started is None or end is None else end - started


def _problem_words(damage: list[DamageRow]) -> str | None:
    """What a person should hear of damage, in one sentence; None where there is none (a torn tail is none)."""
    unreadable = [f"{row.file} {row.message}" for row in damage if row.code == "unreadable_file"]
    lines = sum(row.severity == "error" and row.code != "unreadable_file" for row in damage)
    if lines:
        unreadable.append(f"{lines} damaged place{'s' * (lines > 1)} in the stream (see the view damage)")
    return "; ".join(unreadable) or None


def _iso(value: Any) -> float | None:
    from datetime import datetime

    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
