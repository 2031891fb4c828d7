"""Two runs, or two moments of one, read side by side for `projections.diff`.

One of the composers of `eventstore` and `projections`. Results in `details/` and plans belong to a whole run: at an
earlier moment only the stream speaks.
"""

import os
from collections import Counter
from pathlib import Path

from eventstore.format.events import Json
from eventstore.operations.diagnose.diagnose import masked
from eventstore.operations.diagnose.results import plan_words
from eventstore.results.task_dirs import task_dirs
from eventstore.run.request_record import request_in
from eventstore.run.run import Run
from eventstore.stream.moment import Moment
from projections.diff import Side, compare
from projections.score import outcome_of
from projections.timeline import timeline

from .moment import open_moment
from .view import View, look


def diff_runs(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> Json:
    """What changed from `one` to `other`, each a run directory or `RUN@EVENT`. Raises InputError where there's none."""
    places = [open_moment(one), open_moment(other)]
    sides = [_side(run_dir, moment) for run_dir, moment in places]
    names = ("a", "b")
    report: Json = {
        name: {
            "run_dir": str(run_dir),
            "run_id": run_id,
            "events": events,
            "status": side.counts.get("status"),
            "at_event": moment.events if moment else None,
        }
        for name, (run_dir, moment), (side, run_id, events) in zip(names, places, sides, strict=True)
    }
    for side, _, _ in sides:
        side.counts.pop("status", None)
    return masked(report | compare(sides[0][0], sides[1][0]))


def _side(run_dir: Path, moment: Moment | None) -> tuple[Side, str | None, int]:
    view = look(Run(run_dir), moment)
    side = Side(
        rows=view.rows,
        counts=_counters(view),
        request=request_in(view.run.files.run_info, view.run.files.params).request,
        severities={name: severity for name, (severity, _) in view.marks.severities.items()},
        plans=_plan_counts(view.rows),
    )
    if moment is None:
        _read_results(run_dir, side)
    return side, view.run_id, view.events


def _counters(view: View) -> Json:
    found: Json = {**view.counts, "retries": view.retries, "in_flight": len(view.in_flight())}
    found["duration_seconds"] = view.duration_seconds
    found["status"] = view.status
    return found


def _plan_counts(rows: timeline.State) -> dict[str, int]:
    """Return how many attempts had each resolved plan, by the words for it."""
    found: Counter[str] = Counter()
    for text, count in Counter(str(row.plan) for row in rows.plans).items():
        plan = plan_words(text)
        modes = (plan.get(f"{name}network_mode") for name in ("", "run_", "verifier_"))
        recipes = plan.get("applied_recipes") or ["none"]
        found[f"{plan.get('environment')}; recipes {recipes}; network {' / '.join(map(str, modes))}"] += count
    return dict(found)


def _read_results(run_dir: Path, side: Side) -> None:
    issues: Counter[str] = Counter()
    for task in task_dirs(run_dir):
        if task.task_id is None:
            continue
        values: dict[str, list[float]] = {}
        for attempt in task.attempts.values():
            result = attempt.read_result()
            issues.update(f"{issue.severity} {issue.code}" for issue in result.issues)
            answered = outcome_of(result.status, result.severity) == "answered"
            for name, value in result.metrics.items() if answered else ():  # an outage is no wrong answer
                if isinstance(value, bool | int | float):
                    values.setdefault(name, []).append(float(value))
        if task.published:
            side.metrics[task.task_id] = {name: sum(found) / len(found) for name, found in values.items()}
    side.issues = dict(issues)
