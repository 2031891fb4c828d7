"""One task of a run over all its attempts: phases, retries with reasons, plan, issues, result, checkpoint, artifacts
and the lines of run.log that belong to it.

One of the composers of `eventstore` and `projections`: the stream tells the times, `details/` the outcome.
"""

import contextlib
from pathlib import Path
from typing import Any

from msgspec import structs

from eventstore.errors import InputError, MalformedLineError, UsageError
from eventstore.format.codec import parse_object
from eventstore.format.events import Json
from eventstore.operations.diagnose.diagnose import Seen, look, masked
from eventstore.operations.diagnose.log import lines_about
from eventstore.results.checkpoint_store import read_checkpoint
from eventstore.results.result import read_retry
from eventstore.results.task_dirs import AttemptDir, TaskDir, find_retry_detail, task_dirs
from eventstore.run.directory import RUN_LOG_NAME, open_run
from eventstore.run.names import task_directory_name
from projections.snapshots import run_info
from projections.timeline import timeline

from .moment import match_task

MAX_LOG_LINES = 500


def task_page(path: Path, wanted: str) -> Json:
    """Everything about the task whose id is, or uniquely holds, `wanted`. Raises UsageError with the candidates."""
    run_dir = open_run(path)
    seen = look(run_dir)
    stored = {task.task_id or task.path.name: task for task in task_dirs(run_dir)}
    reused = [name for name in stored if name not in seen.rows.tasks]
    task_id = match_task(wanted, [*seen.rows.tasks, *reused], run_dir)
    return masked(_page(run_dir, seen, task_id, stored.get(task_id)))


def _page(run_dir: Path, seen: Seen, task_id: str, stored: TaskDir | None) -> Json:
    row = seen.rows.tasks.get(task_id)
    phases = [*seen.rows.phases, *timeline.open_phases(seen.rows)]
    own = sorted((stay for stay in phases if stay.task_id == task_id), key=lambda stay: stay.seq)
    attempts = {key[1]: found for key, found in seen.rows.attempts.items() if key[0] == task_id}
    numbers = sorted({n for n in attempts if n is not None} | set(stored.attempts if stored else ()))
    lines, count = _log_lines(run_dir, task_id)
    times = {} if row is None else structs.asdict(row)
    for name in ("task_id", "attempts", "last_phase"):
        times.pop(name, None)
    return {
        "task_id": task_id,
        "run_id": seen.progress.run_id,
        "in_stream": row is not None,
        "in_flight": row is not None and row.starts > row.finishes and seen.marks.ended is None,
        "state": None if stored is None else stored.state,
        "directory": None if stored is None else stored.relative,
        "last_phase": None if row is None else row.last_phase,
        **times,
        "reused_from": None if row is not None else (run_info.record(seen.run_info) or {}).get("reused_from"),
        "ground_truth": None if stored is None else stored.ground_truth,
        "attempt_plan": {} if stored is None else stored.attempt_plan,
        "attempts": [_attempt(run_dir, seen, task_id, n, attempts.get(n), own, stored) for n in numbers],
        "phases": [structs.asdict(stay) for stay in own if stay.attempt is None],
        "problems": [] if stored is None else stored.problems,
        "log": {"count": count, "lines": [{"line": number, "text": text} for number, text in lines]},
    }


def _attempt(
    run_dir: Path,
    seen: Seen,
    task_id: str,
    number: int,
    row: timeline.AttemptRow | None,
    stays: list[timeline.PhaseRow],
    stored: TaskDir | None,
) -> Json:
    plans = [plan for plan in seen.rows.plans if plan.task_id == task_id and plan.attempt == number]
    retries = [retry for retry in seen.rows.retries if retry.task_id == task_id and retry.attempt == number]
    directory = stored.attempts.get(number) if stored else None
    times = {name: None for name in ("status", "started_at", "finished_at", "seconds", "ended_by")}
    if row is not None:
        times = {name: getattr(row, name) for name in times}
    return {
        "attempt": number,
        **times,
        "phases": [_phase(stay) for stay in stays if stay.attempt == number],
        "retries": [_retry(run_dir, task_id, retry) for retry in retries],
        "plan": _parsed(plans[-1].plan) if plans else None,
        "result": None if directory is None else _result(directory, run_dir),
        "checkpoint": None if directory is None else _checkpoint(directory, run_dir),
        "artifacts": None if directory is None else _artifacts(directory, run_dir),
        "archives": 0 if directory is None else len(directory.archives),
    }


def _phase(stay: timeline.PhaseRow) -> Json:
    members = structs.asdict(stay)
    return {name: value for name, value in members.items() if name not in ("task_id", "attempt", "category")}


def _retry(run_dir: Path, task_id: str, retry: timeline.RetryRow) -> Json:
    """A retry, with the issues of its diagnostics, found by name: the recorded path dangles once a task has moved."""
    members = structs.asdict(retry)
    for name in ("task_id", "attempt", "category"):
        del members[name]
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
