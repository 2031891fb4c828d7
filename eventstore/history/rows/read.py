"""One run directory to rows: its stream, its small files and its results, each through the reader that all share.

The same scanner and folds as everything else, so that SQL sees exactly the records that scan accepted and counts as
`replay` does. Rows go to a sink in batches: a stream of gigabytes never stands in memory.
"""

import os
from typing import Any

from msgspec import Struct

from eventstore.errors import InputError
from eventstore.format.events import Json
from eventstore.redaction.text import redact_text
from eventstore.run.directory import PARAMS_NAME, PROGRESS_NAME, RUN_INFO_NAME, RUN_LOG_NAME, read_json_file
from eventstore.run.names import DETAILS_NAME
from eventstore.stream.scan import STREAM_NAME
from projections import Base, sessions
from projections.score import CoverageFold
from projections.snapshots import counts, progress, run_info
from projections.timeline import timeline

from .logs import log_rows
from .params import param_rows
from .plans import stored_plan_rows
from .results import METRICS_NAME, file_problem, headline, result_rows
from .stream import OUT_OF_RANGE, Sink, StreamReader, StreamState, initial_state, out_of_range, rebase, unreadable
from .tables import AGENTCOMPASS, COMPASS_ES, DamageRow, PlacedRun, ResultRow, RunRow
from .values import as_float, as_int, is_beyond, json_text, key_text, text


class ReadRun(Struct, frozen=True):
    """What was read: the row of `runs`, and the state with which an unharmed stream can be gone on with, else None."""

    row: RunRow
    state: StreamState | None


def read_run(run: PlacedRun, sink: Sink, kept: StreamState | None = None) -> ReadRun:
    """Send all rows of a run to the sink; with `kept`, of its stream only those that came since.

    Never raises for what is in the directory: that becomes rows of `damage`.
    """
    names = (PROGRESS_NAME, RUN_INFO_NAME, PARAMS_NAME)
    files = {name: read_json_file(run.path / name) for name in (*names, METRICS_NAME)}
    stored = files[RUN_INFO_NAME].members
    without_plans = None if stored is None else {k: v for k, v in stored.items() if k != "resolved_execution_plans"}
    base = Base(progress=files[PROGRESS_NAME].members, run_info=without_plans)
    state = initial_state(base) if kept is None else kept
    if kept is not None:
        rebase(state, base)
    reader = StreamReader(run, sink, state)
    reader.read()
    sink.rows(run, reader.plans.rows(timeline.rows(state.timeline)))
    sink.rows(run, stored_plan_rows(stored or {}, reader.plans.seen))
    sink.rows(run, param_rows(stored or {}, files[PARAMS_NAME].members))
    coverage = CoverageFold.of_plan(stored or {})
    task_ids = set(state.timeline.tasks) | _send_results(run, sink, coverage)
    damage = [problem for name in names if (problem := file_problem(run.path, files[name])) is not None]
    damage += reader.damage
    damage += _send_log(run, sink, stored or {}, task_ids)
    row = _run_row(run, state, stored or {}, damage, files[METRICS_NAME].members or {})
    if os.path.lexists(run.path / DETAILS_NAME):
        _set_coverage(row, coverage)
    sink.rows(run, damage)
    sink.rows(run, [row])
    whole = all(found.code == "torn_tail" for found in reader.damage)
    return ReadRun(row, state if whole and row.events else None)


def _send_results(run: PlacedRun, sink: Sink, coverage: CoverageFold) -> set[str]:
    batch: list[Struct] = []
    task_ids: set[str] = set()
    for row in result_rows(run.path, coverage):
        batch.append(row)
        if isinstance(row, ResultRow):
            task_ids.add(row.task_id)
        if len(batch) >= 1000:
            sink.rows(run, batch)
            batch = []
    sink.rows(run, batch)
    return task_ids


def _send_log(run: PlacedRun, sink: Sink, stored: Json, task_ids: set[str]) -> list[DamageRow]:
    path = run.path / RUN_LOG_NAME
    if not os.path.lexists(path):
        return []
    started_at = stored.get("started_at")
    try:
        sink.rows(run, log_rows(path, started_at if isinstance(started_at, str) else None, task_ids))
    except InputError as error:
        return [unreadable(RUN_LOG_NAME, error, path)]
    return []


# -- the row of `runs`


def _run_row(run: PlacedRun, state: StreamState, stored: Json, damage: list[DamageRow], metrics: Json) -> RunRow:
    folded = progress.snapshot(state.progress)
    info = run_info.record(state.run_info) or {}
    events = state.progress.counts.events
    request = _object(info.get("request"))
    execution = _object(request.get("execution"))
    attempts = _object(execution.get("attempts"))
    reused = _object(info.get("reused_from"))
    ended = state.run_info.ended
    row = RunRow(
        path=key_text(str(run.path)),
        run_key=run.key,
        run_id=text(folded["run_id"] if events else info.get("run_id")),
        status=text(run_info.shown_status(state.run_info, info, folded)),
        finished="status" in info,
        error=_masked(info.get("error")),
        score=headline(metrics),
        attempts_k=as_int(attempts.get("k")),
        attempts_strategy=text(attempts.get("strategy")),
        reused_from_run_id=text(reused.get("run_id")),
        reused_from_path=text(reused.get("path")),
        schema_version=text(stored.get("schema_version")),
        stored_status=text(stored.get("status")),
        analysis_only=run_info.is_analysis_only(state.run_info),
        retries=state.retries,
        events=events,
        damaged=sum(row.severity == "error" and row.file == STREAM_NAME for row in damage),
        request=json_text(info.get("request")),
        metric_artifacts=json_text(info.get("metric_artifacts")),
    )
    for name in ("benchmark", "harness", "environment", "model"):
        setattr(row, name, text(folded[name]))
    for name in counts.COUNTERS:
        setattr(row, name, as_int(folded[name]))
        if is_beyond(folded[name]):
            damage.append(out_of_range(STREAM_NAME if events else PROGRESS_NAME, name))
    row.longest_gap_seconds, row.longest_gap_seq = state.longest_gap, state.longest_gap_seq
    row.sealed, row.torn_bytes, row.bytes = state.sealed, state.torn_bytes, state.bytes
    _set_times(row, state, info, ended)
    row.problem = _problem_words(damage)
    return row


def _set_coverage(row: RunRow, fold: CoverageFold) -> None:
    """What counts for the score; without task details it is not known."""
    found = fold.coverage(row.total_tasks or 0)
    row.answered, row.infrastructure_failed = found.answered, found.infrastructure_failed
    row.never_run, row.score_answered = found.never_run, found.score_answered


def _set_times(row: RunRow, state: StreamState, info: Json, ended: Json | None) -> None:
    """Times of the stream where it has them, else those of run_info.json."""
    first = state.first
    if first is not None:
        row.source = COMPASS_ES if first.sealed else AGENTCOMPASS
        for name in first.context.__struct_fields__:
            setattr(row, name, getattr(first.context, name))
    counted = state.progress.counts
    began, last = (
        None if moment is None else as_float(moment) for moment in (counted.first_moment, counted.last_moment)
    )
    times = run_info.run_times(info, ended, began, last)
    row.last_event_at, row.started_at, row.finished_at = last, times.started_at, times.finished_at
    row.seconds, row.clock_stepped = times.seconds, times.clock_stepped
    row.closed = json_text(None if ended is None else sessions.closed_by(ended["payload"]))


def _problem_words(damage: list[DamageRow]) -> str | None:
    """Return what a person should hear of damage, in one sentence; None where there is none (a torn tail is none)."""
    unreadable = [f"{row.file} {row.message}" for row in damage if row.code == "unreadable_file"]
    unreadable += [f"{row.file}: {row.message}" for row in damage if row.code == OUT_OF_RANGE]
    lines = sum(row.severity == "error" and row.code != "unreadable_file" for row in damage)
    if lines:
        unreadable.append(f"{lines} damaged place{'s' * (lines > 1)} in the stream (see the view damage)")
    return "; ".join(unreadable) or None


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _masked(error: Any) -> str | None:
    """Return the error of a run as text: it quotes addresses and headers, and the catalog is kept."""
    words = text(error)
    return None if words is None else redact_text(words)
