"""One task of a run over all its attempts: phases, retries with reasons, plan, issues, result, checkpoint, artifacts
and the lines of run.log that belong to it.

One of the composers of `eventstore` and `projections`: the stream tells the times, `details/` the outcome.
"""

import contextlib
from pathlib import Path
from typing import Any

from msgspec import Struct, structs, to_builtins

from eventstore.errors import InputError, MalformedLineError, UsageError
from eventstore.format.codec import parse_object
from eventstore.format.events import Json
from eventstore.format.values import iso_utc
from eventstore.operations.diagnose.diagnose import masked
from eventstore.operations.diagnose.log import lines_about
from eventstore.results.checkpoint_store import read_checkpoint
from eventstore.results.result import read_retry
from eventstore.results.task_dirs import AttemptDir, TaskDir, find_retry_detail, task_dirs
from eventstore.run.directory import RUN_LOG_NAME
from eventstore.run.names import task_directory_name
from eventstore.run.run import Run
from projections.timeline import timeline

from .moment import match_task
from .view import View, look

MAX_LOG_LINES = 500


def task_page(path: Path, wanted: str) -> Json:
    """Everything about the task whose id is, or uniquely holds, `wanted`. Raises UsageError with the candidates."""
    view = look(Run.open(path))
    run_dir = view.run.path
    stored = {task.task_id or task.path.name: task for task in task_dirs(run_dir)}
    reused = [name for name in stored if name not in view.rows.tasks]
    task_id = match_task(wanted, [*view.rows.tasks, *reused], run_dir)
    return masked(_page(run_dir, view, task_id, stored.get(task_id)))


def _page(run_dir: Path, view: View, task_id: str, stored: TaskDir | None) -> Json:
    row = view.rows.tasks.get(task_id)
    phases = [*view.rows.phases, *timeline.open_phases(view.rows)]
    own = sorted((stay for stay in phases if stay.task_id == task_id), key=lambda stay: stay.seq)
    attempts = {key[1]: found for key, found in view.rows.attempts.items() if key[0] == task_id}
    numbers = sorted({n for n in attempts if n is not None} | set(stored.attempts if stored else ()))
    lines, count = _log_lines(run_dir, task_id)
    times = {} if row is None else _members(row, without=("task_id", "attempts", "last_phase"))
    if row is not None:
        times["duration_seconds"] = _seconds(timeline.task_seconds(view.rows, row))
    return {
        "schema": "compass-es.task.v1",
        "task_id": task_id,
        "run_id": view.run_id,
        "in_stream": row is not None,
        "in_flight": [to_builtins(flight) for flight in view.in_flight() if flight.task_id == task_id],
        "ended": view.ended,
        "state": None if stored is None else stored.state,
        "directory": None if stored is None else stored.relative,
        "last_phase": None if row is None else row.last_phase,
        **times,
        "reused_from": None if row is not None else view.info.get("reused_from"),
        "ground_truth": None if stored is None else stored.ground_truth,
        "attempt_plan": {} if stored is None else stored.attempt_plan,
        "attempts": [_attempt(run_dir, view, task_id, n, attempts.get(n), own, stored) for n in numbers],
        "phases": [_phase(stay) for stay in own if stay.attempt is None],
        "problems": [] if stored is None else stored.problems,
        "log": {"count": count, "lines": [{"line": number, "text": text} for number, text in lines]},
    }


def _attempt(
    run_dir: Path,
    view: View,
    task_id: str,
    number: int,
    row: timeline.AttemptRow | None,
    stays: list[timeline.PhaseRow],
    stored: TaskDir | None,
) -> Json:
    plans = [plan for plan in view.rows.plans if plan.task_id == task_id and plan.attempt == number]
    retries = [retry for retry in view.rows.retries if retry.task_id == task_id and retry.attempt == number]
    directory = stored.attempts.get(number) if stored else None
    members = _members(timeline.AttemptRow(task_id, number) if row is None else row)
    if row is not None:
        members["duration_seconds"] = _seconds(timeline.attempt_seconds(view.rows, row))
    names = ("status", "started_at", "finished_at", "duration_seconds", "ended_by")
    return {
        "attempt": number,
        **{name: members[name] for name in names},
        "phases": [_phase(stay) for stay in stays if stay.attempt == number],
        "retries": [_retry(run_dir, task_id, retry) for retry in retries],
        "plan": _parsed(plans[-1].plan) if plans else None,
        "result": None if directory is None else _result(directory, run_dir),
        "checkpoint": None if directory is None else _checkpoint(directory, run_dir),
        "artifacts": None if directory is None else _artifacts(directory, run_dir),
        "archives": 0 if directory is None else len(directory.archives),
    }


def _members(row: Struct, without: tuple[str, ...] = ()) -> Json:
    """Return a row's members as reports name them: times as ISO 8601 in UTC, one name for a length of time."""
    members: Json = {}
    for name, value in structs.asdict(row).items():
        if name.endswith("_at"):
            members[name] = iso_utc(value)
        elif name == "seconds":
            members["duration_seconds"] = _seconds(value)
        elif name not in without:
            members[name] = value
    return members


def _seconds(value: float | None) -> float | None:
    """Return a length of time, None where the clock went back over it."""
    return None if value is None or value < 0 else value


def _phase(stay: timeline.PhaseRow) -> Json:
    return _members(stay, without=("task_id", "attempt", "category"))


def _retry(run_dir: Path, task_id: str, retry: timeline.RetryRow) -> Json:
    """A retry, with the issues of its diagnostics, found by name: the recorded path dangles once a task has moved."""
    members = _members(retry, without=("task_id", "attempt", "category"))
    path = find_retry_detail(run_dir, task_id, retry.retry_detail) if retry.retry_detail else None
    members["file"] = None if path is None else path.relative_to(run_dir).as_posix()
    members["issues"] = [] if path is None else [structs.asdict(issue) for issue in read_retry(path).issues]
    return members


def _parsed(plan: str) -> Any:
    try:
        return parse_object(plan.encode())
    except MalformedLineError:
        return None


def _result(attempt: AttemptDir, run_dir: Path) -> Json:
    result = attempt.read_result("final_answer")
    return {
        "file": (attempt.path / "result.json").relative_to(run_dir).as_posix() if result.exists else None,
        "problem": result.problem,
        "status": result.status,
        "severity": result.severity,
        "metrics": result.metrics,
        "issues": [structs.asdict(issue) for issue in result.issues],
        "retry_count": result.retry_count,
        "final_answer": result.members.get("final_answer"),
    }


def _checkpoint(attempt: AttemptDir, run_dir: Path) -> Json:
    found = read_checkpoint(attempt.path / "checkpoint.json")
    return {
        "file": found.path.relative_to(run_dir).as_posix() if found.exists else None,
        "problem": found.problem or ("; ".join(found.problems.values()) or None),
        "evaluation": found.evaluation is not None,
        "scheduler_status": None if found.scheduler is None else found.scheduler.status,
    }


def _artifacts(attempt: AttemptDir, run_dir: Path) -> Json:
    folder = attempt.path / "artifacts"
    there = attempt.has_artifacts
    return {"folder": folder.relative_to(run_dir).as_posix() if there else None}


def _log_lines(run_dir: Path, task_id: str) -> tuple[list[tuple[int, str]], int]:
    names = [f"task={task_id}", f"task_id={task_id}", f"for task {task_id}"]
    with contextlib.suppress(UsageError):  # an id that can't be stored has no directory
        names.append(task_directory_name(task_id))
    try:
        return lines_about(run_dir / RUN_LOG_NAME, names, MAX_LOG_LINES)
    except InputError:
        return [], 0
