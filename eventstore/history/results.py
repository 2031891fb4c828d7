"""Rows from the files of results: details/<state>/<task>/attempt-<n>/result.json, metrics.json, artifacts.

Tolerant: whatever can't be read becomes a `damage` row, and the rest goes on. Names from files are never used as
paths; only folders that are there are entered.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from .. import codec
from ..events import SEVERITIES, Json
from ..rundir import StoredFile, read_json_file
from .tables import ArtifactRow, DamageRow, IssueRow, MetricRow, ResultRow
from .values import as_int, float_text, json_text, text

DETAILS_NAME = "details"
METRICS_NAME = "metrics.json"
_ATTEMPT = re.compile(r"attempt-([0-9]{1,9})")
_MAX_ARTIFACTS = 100_000


def result_rows(run_dir: Path) -> Iterator[Struct]:
    """Rows of results, issues, metrics, artifacts and damage of one run directory."""
    for state, task_dir in _task_dirs(run_dir / DETAILS_NAME):
        yield from _task_rows(run_dir, state, task_dir)
    metrics = read_json_file(run_dir / METRICS_NAME)
    yield from _problem(run_dir, metrics)
    if metrics.members is not None:
        yield from run_metric_rows(metrics.members)


def _folders(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _task_dirs(details: Path) -> Iterator[tuple[str | None, Path]]:
    """Task folders with their state; of layout v2, without a state folder, too."""
    for name in _folders(details):
        if os.path.lexists(details / name / "task.json"):
            yield None, details / name
        else:
            for task in _folders(details / name):
                yield name, details / name / task


def _task_rows(run_dir: Path, state: str | None, task_dir: Path) -> Iterator[Struct]:
    stored = read_json_file(task_dir / "task.json")
    yield from _problem(run_dir, stored)
    task = stored.members or {}
    task_id = text(task.get("task_id")) or task_dir.name.rpartition("--")[0] or task_dir.name
    for name in _folders(task_dir):
        found = _ATTEMPT.fullmatch(name)
        if found:
            number = int(found[1])
            yield from _attempt_rows(run_dir, state, task, task_id, number, task_dir / name)
            yield from _artifact_rows(run_dir, task_id, number, task_dir / name)


def _attempt_rows(
    run_dir: Path, state: str | None, task: Json, task_id: str, attempt: int, folder: Path
) -> Iterator[Struct]:
    stored = read_json_file(folder / "result.json")
    yield from _problem(run_dir, stored)
    result = stored.members
    if result is None:
        return
    category = text(task.get("category"))
    issues = [issue for issue in _list(result.get("issues")) if isinstance(issue, dict)]
    yield ResultRow(
        task_id=task_id,
        attempt=attempt,
        category=category,
        state=state,
        status=text(result.get("status")),
        severity=_highest(issues),
        issues=len(issues),
        retries=as_int(result.get("retry_count")),
        final_answer=json_text(result.get("final_answer")),
        ground_truth=json_text(task.get("ground_truth")),
        metrics=json_text(result.get("metrics")),
        meta=json_text(result.get("meta")),
        analysis_result=json_text(result.get("analysis_result")),
        result_bytes=_size(folder / "result.json"),
        file=_relative(run_dir, folder / "result.json"),
    )
    for number, issue in enumerate(issues):
        yield IssueRow(
            task_id=task_id, attempt=attempt, category=category, number=number,
            **{name: text(issue.get(name)) for name in ("severity", "phase", "code", "message")},
        )  # fmt: skip
    for name, value in _leaves(result.get("metrics")):
        yield MetricRow(
            scope="attempt", metric=name, task_id=task_id, attempt=attempt, category=category,
            value=float_text(value), raw=json_text(value),
        )  # fmt: skip


def run_metric_rows(metrics: Json) -> Iterator[MetricRow]:
    """Rows of a metrics.json: its series, for the run and by category."""
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
    """The value of the run's headline metric; None where there is none, or it is no number."""
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
                        task_id=task_id, attempt=attempt, kind=kind, file=_relative(run_dir, path),
                        bytes=status.st_size, modified_at=status.st_mtime,
                    )  # fmt: skip


def _problem(run_dir: Path, stored: StoredFile) -> Iterator[DamageRow]:
    row = file_problem(run_dir, stored)
    if row is not None:
        yield row


def file_problem(run_dir: Path, stored: StoredFile) -> DamageRow | None:
    """The damage row of a small file that is there and can't be read."""
    if stored.problem is None:
        return None
    file = _relative(run_dir, stored.path)
    return DamageRow(file=file, code="unreadable_file", severity="error", message=text(stored.problem) or "")


def _relative(run_dir: Path, path: Path) -> str:
    return codec.utf8(path.relative_to(run_dir).as_posix()).decode("utf-8")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _highest(issues: list[Json]) -> str | None:
    found = {issue.get("severity") for issue in issues if isinstance(issue.get("severity"), str)}
    return next((name for name in SEVERITIES if name in found), None)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
