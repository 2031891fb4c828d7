"""What a run left behind: results and their issues, retries and what they burnt, open environments, the score.

Read for a diagnosis, without trust. Tasks that are published without errors are counted and not opened.
"""

import os
from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from eventstore.errors import MalformedLineError, UsageError
from eventstore.format.codec import parse_object
from eventstore.format.events import Json
from eventstore.operations.reuse.plan import plan_like_source
from eventstore.results.result import Issue
from eventstore.results.task_dirs import TaskDir, task_dirs
from eventstore.run.directory import StoredFile, read_json_file
from eventstore.run.names import ERROR, FATAL, NORMAL, RUNNING
from eventstore.run.request_record import request_in
from eventstore.run.run import RunFiles
from projections.diagnose.facts import IssueFact
from projections.score import AttemptScores, CoverageFold
from projections.timeline import milestones, timeline

MAX_RESULTS_READ = 5_000
RESOURCES_NAME = ".env-resources"
_HALF_A_DAY = 12 * 3600


class Results(Struct, kw_only=True):
    """Issues of everything that is not well, tasks by the state they stand in, and what can't be read."""

    issues: list[IssueFact] = []
    states: Counter[str] = field(default_factory=Counter)
    unfinished: int = 0
    present: bool = False
    coverage: CoverageFold = field(default_factory=CoverageFold)
    problems: list[str] = []


def read_results(run_dir: Path, run_info: StoredFile) -> Results:
    """Return the results of a run; the issues of at most `MAX_RESULTS_READ` tasks that have any, and all counts."""
    coverage = CoverageFold.of_plan(run_info.members or {})
    found = Results(present=os.path.lexists(run_dir / "details"), coverage=coverage)
    read = 0
    for task in task_dirs(run_dir, lambda path, words: found.problems.append(f"{Path(path).name} {words}")):
        found.states[task.state or "unknown"] += 1
        full = task.state != NORMAL and read < MAX_RESULTS_READ
        read += full
        _read_task(task, found, full)
    return found


def _read_task(task: TaskDir, found: Results, full: bool) -> None:
    """Count a task's attempts; take its issues, and with `full` those of its retries, too."""
    scores: dict[int, AttemptScores] = {}
    name = task.task_id or task.path.name
    stored = {number: attempt.read_result() for number, attempt in task.attempts.items()}
    if task.state != RUNNING and (reason := task.unfinished_reason(stored)) is not None:
        found.unfinished += 1
        if not any(result.problem for result in stored.values()):  # those are told below
            found.problems.append(f"{task.relative} is not finished: {reason}")
    for attempt in task.attempts.values():
        result = stored[attempt.number]
        if result.status is not None:
            scores[attempt.number] = AttemptScores(result.status, result.metrics, result.severity)
        place = f"{task.relative}/{attempt.path.name}"
        if result.problem:
            found.problems.append(f"{place}/result.json {result.problem}")
        taken = result.issues if full else [issue for issue in result.issues if issue.phase == "cleanup"]
        found.issues += [_fact(issue, name, attempt.number, f"{place}/result.json") for issue in taken]
        for retry in attempt.read_retries() if full else ():
            file = f"{place}/retries/{retry.path.name}"
            found.issues += [_fact(issue, name, attempt.number, file, discarded=True) for issue in retry.issues]
    if task.published:
        found.coverage.add(scores)


def _fact(issue: Issue, task_id: str, attempt: int, file: str, discarded: bool = False) -> IssueFact:
    return IssueFact(
        severity=issue.severity,
        phase=issue.phase,
        code=issue.code,
        message=issue.message,
        task_id=task_id,
        attempt=attempt,
        file=file,
        discarded=discarded,
    )


# -- what there is to say about it


def describe(
    run_dir: Path,
    rows: timeline.State,
    marks: milestones.State,
    results: Results,
    files: RunFiles,
    total_tasks: int,
) -> Json:
    """The members of a report that tell what is left: retries, results, reuse, score, plans, resources, params."""
    return {
        "retries": retries(rows),
        "results": _result_counts(rows, marks, results, total_tasks),
        "reuse": _reuse(run_dir, results, files, total_tasks),
        "score": _score(run_dir, marks, results, total_tasks),
        "issues": _issue_counts(results.issues),
        "plans": plans(rows),
        "resources": open_resources(run_dir),
        "params": _params(files.params),
        "problems": results.problems[:20],
    }


def retries(rows: timeline.State) -> Json:
    """Runtime retries, what they cost, and what they bought."""
    reasons: dict[tuple[str | None, str | None], list[timeline.RetryRow]] = {}
    for row in rows.retries:
        reasons.setdefault((row.stage, row.matched_pattern), []).append(row)
    retried = {row.task_id for row in rows.retries}
    well = [
        name
        for name in retried
        if (task := rows.tasks.get(name or ""))
        and task.finishes
        and task.severity not in ("fatal", "error")
        and task.status == "completed"
    ]
    return {
        "count": len(rows.retries),
        "discarded_seconds": sum(row.discarded_seconds or 0.0 for row in rows.retries),
        "waited_seconds": sum(row.retry_delay_seconds or 0.0 for row in rows.retries),
        "tasks": len(retried),
        "recovered_tasks": len(well),
        "reasons": sorted(
            (
                {
                    "stage": stage,
                    "matched_pattern": pattern,
                    "count": len(group),
                    "discarded_seconds": sum(row.discarded_seconds or 0.0 for row in group),
                }
                for (stage, pattern), group in reasons.items()
            ),
            key=lambda reason: -int(str(reason["count"])),
        ),
    }


def _result_counts(rows: timeline.State, marks: milestones.State, results: Results, total_tasks: int) -> Json:
    complete = sum(results.states[state] for state in (NORMAL, ERROR, FATAL, "unknown")) - results.unfinished
    if not results.present:
        complete = sum(row.partials_saved > 0 for row in rows.tasks.values())
    partial = results.states[RUNNING]
    return {
        "complete": complete,
        "partial": partial,
        "missing": max(0, total_tasks - complete - partial),
        "stored": results.present,
        "states": dict(results.states),
    }


def _reuse(run_dir: Path, results: Results, files: RunFiles, total_tasks: int) -> Json:
    """What reuse would keep, by the plan of `compass-es reuse plan`; stored artifacts are believed without a look."""
    plan = None
    if results.present:
        with suppress(UsageError):  # a request that no new run could repeat, such as a pattern that is none
            plan = plan_like_source(run_dir, request_in(files.run_info, files.params), total_tasks)
    if plan is None or plan.refusal is not None:
        nothing = dict.fromkeys(("keeps", "reruns", "keeps_failed", "attempts_to_run", "max_retries"))
        return {**nothing, "retry_patterns": [], "estimate": True}
    keeps, wanted = len(plan.reused), plan.wanted
    return {
        "keeps": keeps,
        "reruns": max(0, total_tasks - keeps),
        "keeps_failed": sum(plan.severity_counts.get(name, 0) for name in ("fatal", "error")),
        "attempts_to_run": plan.attempts_to_run,
        "max_retries": wanted.max_retries,
        "retry_patterns": list(wanted.retry_patterns),
        "estimate": True,
    }


def _score(run_dir: Path, marks: milestones.State, results: Results, total_tasks: int) -> Json:
    stored = read_json_file(run_dir / "metrics.json")
    found = Counter(severity for severity, _ in marks.severities.values() if severity)
    reasons = []
    if stored.members is None:
        reasons.append(f"metrics.json {stored.problem or 'is missing'}")
    elif stored.members.get("evaluation_failed") is True:
        reasons.append("metrics.json says that the evaluation failed: no official score")
    elif _evaluated(stored.members) == 0:
        reasons.append("no task was evaluated")
    coverage = results.coverage.coverage(total_tasks, stored=results.present)
    if coverage.reason is not None and results.present:
        reasons.append(coverage.reason)
    usable = not reasons
    if found["fatal"]:
        reasons.append(f"{found['fatal']} tasks have fatal issues")
    if found["error"]:
        reasons.append(f"{found['error']} of {total_tasks} tasks carry errors")
    known = results.present
    return {
        "usable": usable,
        "reasons": reasons,
        "planned": coverage.planned,
        "answered": coverage.answered if known else None,
        "infrastructure_failed": coverage.infrastructure_failed if known else None,
        "never_run": coverage.never_run if known else None,
        "score_answered": coverage.score_answered,
    }


def _evaluated(metrics: Json) -> int | None:
    """Return how many observations the headline metric rests on, where metrics.json tells."""
    series = metrics.get("series")
    for entry in series if isinstance(series, list) else []:
        counts = entry.get("counts") if isinstance(entry, dict) else None
        if isinstance(counts, dict) and isinstance(counts.get("evaluated"), int):
            return int(counts["evaluated"])
    return None


def _issue_counts(issues: list[IssueFact]) -> list[Json]:
    final = Counter((i.severity, i.phase, i.code) for i in issues if not i.discarded)
    return [
        {"severity": severity, "phase": phase, "code": code, "count": count}
        for (severity, phase, code), count in final.most_common(20)
    ]


def plans(rows: timeline.State) -> list[Json]:
    """Return recipes and network policies of the attempts that were planned, those that agree counted together."""
    groups: Counter[str] = Counter()
    for row in rows.plans:
        groups[str(row.plan)] += 1
    return [{"attempts": count} | plan_words(text) for text, count in groups.most_common(10)]


def plan_words(text: str) -> Json:
    """Environment, recipes and network modes of a resolved plan, given as JSON text."""
    try:
        plan = parse_object(text.encode())
    except MalformedLineError:
        return {}
    environment = plan.get("environment")
    named = environment if isinstance(environment, dict) else {}
    recipes = plan.get("applied_recipes")
    return {
        "environment": named.get("id"),
        "applied_recipes": [str(name) for name in recipes] if isinstance(recipes, list) else [],
        "network_mode": _mode(named.get("baseline_network_policy") or named.get("network_policy")),
        "run_network_mode": _mode(plan.get("run_network_policy")),
        "verifier_network_mode": _mode(plan.get("evaluation_network_policy") or plan.get("verifier_network_policy")),
    }


def _mode(policy: Any) -> Any:
    return policy.get("network_mode") if isinstance(policy, dict) else None


def open_resources(run_dir: Path) -> list[Json]:
    """Return environments that were opened and whose release is not recorded."""
    folder = run_dir / RESOURCES_NAME
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
    except OSError:
        return []
    found = []
    for name in [name for name in names if name.endswith(".json")][:1000]:
        members = read_json_file(folder / name).members or {}
        wanted = ("provider", "state", "task_id", "attempt", "created_at", "updated_at", "error")
        found.append({"file": f"{RESOURCES_NAME}/{name}"} | {key: members.get(key) for key in wanted})
    return found


def _params(stored: StoredFile) -> Json:
    """Return whether params.json could explain a failed summary: missing, unreadable, or without the attempt plan."""
    if stored.members is None:
        return {"present": False, "problem": stored.problem or "is missing"}
    execution = stored.members.get("execution")
    plan = execution.get("attempts") if isinstance(execution, dict) else None
    return {"present": True, "problem": None if isinstance(plan, dict) else "has no execution.attempts"}


# -- times that other files hold


def log_time(time_of_day: str, info: Json, near: float) -> float | None:
    """Unix seconds of a time of day in run.log: the one nearest to `near`, in the offset of the run's start."""
    try:
        start = datetime.fromisoformat(str(info.get("started_at")))
        hours, minutes, seconds = map(int, time_of_day.split(":"))
        day = datetime.fromtimestamp(near, start.tzinfo)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    if start.tzinfo is None:
        return None
    moment = day.replace(hour=hours % 24, minute=minutes, second=min(seconds, 59), microsecond=0)
    late = moment.timestamp() - near
    shift = 1 if late < -_HALF_A_DAY else -1 if late > _HALF_A_DAY else 0
    return (moment + timedelta(days=shift)).timestamp()
