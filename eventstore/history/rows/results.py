"""Rows from the files of results: details/<state>/<task>/attempt-<n>/result.json, metrics.json, artifacts.

Results come through `eventstore.results.task_dirs`, as everywhere. Whatever can't be read becomes a `damage` row, and
the rest goes on; only folders that are there are entered.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from eventstore.format.events import Json
from eventstore.results.task_dirs import AttemptDir, TaskDir, task_dirs
from eventstore.run.directory import StoredFile, read_json_file
from eventstore.run.names import RESULT_FILE, TASK_FILE
from projections.score import AttemptScores, CoverageFold, outcome_of

from .tables import ArtifactRow, DamageRow, IssueRow, MetricRow, ResultRow
from .values import as_int, float_text, json_text, key_text, text

METRICS_NAME = "metrics.json"
_MAX_ARTIFACTS = 100_000


def result_rows(run_dir: Path, coverage: CoverageFold) -> Iterator[Struct]:
    """Rows of results, issues, metrics, artifacts and damage of one run directory; attempts count in `coverage`."""
    problems: list[DamageRow] = []

    def note(path: str, words: str) -> None:
        problems.append(_damage(run_dir, Path(path), words))

    for task in task_dirs(run_dir, note):
        yield from _task_rows(run_dir, task, coverage)
    yield from problems
    metrics = read_json_file(run_dir / METRICS_NAME)
    problem = file_problem(run_dir, metrics)
    if problem is not None:
        yield problem
    if metrics.members is not None:
        yield from run_metric_rows(metrics.members)


def _task_rows(run_dir: Path, task: TaskDir, coverage: CoverageFold) -> Iterator[Struct]:
    if task.problem is not None and os.path.lexists(task.path / TASK_FILE):
        yield _damage(run_dir, task.path / TASK_FILE, task.problem.removeprefix(f"{TASK_FILE} "))
    task_id = text(task.task_id) or key_text(task.path.name.rpartition("--")[0] or task.path.name)
    scores: dict[int, AttemptScores] = {}
    for number, attempt in task.attempts.items():
        if attempt.exists:
            yield from _attempt_rows(run_dir, task, task_id, attempt, scores)
            yield from _artifact_rows(run_dir, task_id, number, attempt.path)
    if task.published:
        coverage.add(scores)


def _attempt_rows(
    run_dir: Path, task: TaskDir, task_id: str, attempt: AttemptDir, scores: dict[int, AttemptScores]
) -> Iterator[Struct]:
    path, number = attempt.path / RESULT_FILE, attempt.number
    if not attempt.has_result:
        return
    result = attempt.read_result("final_answer", "meta", "analysis_result")
    if result.problem is not None:
        yield _damage(run_dir, path, result.problem)
        return
    category = text(task.category)
    if result.status is not None:
        scores[number] = AttemptScores(result.status, result.metrics, result.severity)
    yield ResultRow(
        task_id=task_id,
        attempt=number,
        category=category,
        state=text(task.state),
        status=text(result.status),
        severity=result.severity or None,
        outcome=outcome_of(result.status, result.severity) if task.published else "never_run",
        issues=len(result.issues),
        retries=as_int(result.retry_count),
        final_answer=json_text(result.members.get("final_answer")),
        ground_truth=json_text(task.ground_truth),
        metrics=json_text(result.metrics),
        meta=json_text(result.members.get("meta")),
        analysis_result=json_text(result.members.get("analysis_result")),
        result_bytes=result.size,
        file=_relative(run_dir, path),
    )
    for index, issue in enumerate(result.issues):
        yield IssueRow(
            task_id=task_id,
            attempt=number,
            category=category,
            number=index,
            severity=text(issue.severity),
            phase=text(issue.phase),
            code=text(issue.code),
            message=text(issue.message),
        )
    for name, value in _leaves(result.metrics):
        yield MetricRow(
            scope="attempt",
            metric=name,
            task_id=task_id,
            attempt=number,
            category=category,
            value=float_text(value),
            raw=json_text(value),
        )


def run_metric_rows(metrics: Json) -> Iterator[MetricRow]:
    """Yield rows of a metrics.json: its series, for the run and by category."""
    for series in _list(metrics.get("series")):
        if isinstance(series, dict):
            yield _series_row("run", None, series, series)
            categories = series.get("categories")
            for name, values in (categories if isinstance(categories, dict) else {}).items():
                if isinstance(values, dict):
                    yield _series_row("category", name, series, values)


def _series_row(scope: str, category: str | None, series: Json, values: Json) -> MetricRow:
    counts = values.get("counts")
    counts = counts if isinstance(counts, dict) else {}
    return MetricRow(
        scope=scope,
        metric=text(series.get("metric_id")) or text(series.get("series_id")) or "",
        category=text(category),
        reducer=text(series.get("reducer")),
        k=as_int(series.get("k")),
        role=text(series.get("role")),
        value=float_text(values.get("value")),
        total=as_int(counts.get("total")),
        evaluated=as_int(counts.get("evaluated")),
        errors=as_int(counts.get("error")),
        raw=json_text(values.get("value")),
    )


def headline(metrics: Json) -> float | None:
    """Return the value of the run's headline metric; None where there is none, or it is no number."""
    for series in _list(metrics.get("series")):
        if isinstance(series, dict) and series.get("role") == "headline":
            value = series.get("value")
            return float(value) if isinstance(value, int | float) else None
    return None


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from _leaves(member, f"{path}.{text(name)}" if path else text(name) or "")
    elif path:
        yield path, value


def _artifact_rows(run_dir: Path, task_id: str, attempt: int, folder: Path) -> Iterator[ArtifactRow]:
    for kind in ("artifacts", "retries"):
        count = 0
        for place, folders, names in os.walk(folder / kind, followlinks=False):
            folders.sort()
            for name in sorted(names):
                path = Path(place, name)
                try:
                    status = path.lstat()
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode) and count < _MAX_ARTIFACTS:
                    count += 1
                    yield ArtifactRow(
                        task_id=task_id,
                        attempt=attempt,
                        kind=kind,
                        file=_relative(run_dir, path),
                        bytes=status.st_size,
                        modified_at=status.st_mtime,
                    )


def file_problem(run_dir: Path, stored: StoredFile) -> DamageRow | None:
    """Return the damage row of a small file that is there and can't be read."""
    return None if stored.problem is None else _damage(run_dir, stored.path, stored.problem)


def _damage(run_dir: Path, path: Path, words: str) -> DamageRow:
    file, message = _relative(run_dir, path), text(words) or ""
    return DamageRow(file=file, code="unreadable_file", severity="error", message=message)


def _relative(run_dir: Path, path: Path) -> str:
    return key_text(path.relative_to(run_dir).as_posix())


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
