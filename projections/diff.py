"""What changed between two runs, or two moments of one: parameters, tasks, phases, counts, retries, issues. Pure.

`a` is the older side, `b` the newer. Tasks are matched by id; one that ended well on one side and not on the other is
newly well or newly failing, and one whose metrics differ *flipped*. Where both sides have the same tasks, the
comparison is paired and gets an exact two-sided test: McNemar's for metrics that are true or false, the sign test for
times.
"""

from collections.abc import Iterable, Mapping
from math import comb
from statistics import median
from typing import Any

from msgspec import Struct

from eventstore.format.events import Json
from projections.timeline.in_flight import finished_stays

from .timeline import timeline

MIN_PAIRS = 6
"""With fewer pairs that differ no two-sided exact test can come below 5 %."""
MAX_PARAMETERS = 500


class Side(Struct, kw_only=True):
    """One side. `metrics` holds each task's means by name, `severities` its highest severity at its end."""

    rows: timeline.State
    counts: Json = {}
    request: Json = {}
    severities: dict[str, str] = {}
    metrics: dict[str, dict[str, float]] = {}
    issues: dict[str, int] = {}
    plans: dict[str, int] = {}


def compare(a: Side, b: Side) -> Json:
    """Return the members of `compass-es diff`: tasks, phases, counts, parameters, metrics, issues, plans."""
    return {
        "tasks": task_changes(a, b),
        "phases": phase_changes(a, b),
        "counts": _changed_numbers(a.counts, b.counts),
        "parameters": parameter_changes(a.request, b.request),
        "metrics": metric_changes(a, b),
        "issues": _changed_numbers(a.issues, b.issues),
        "plans": _changed_numbers(a.plans, b.plans),
    }


# -- tasks


def task_changes(a: Side, b: Side) -> list[Json]:
    """Return tasks that are not the same on both sides, in the order of their ids, each with its `change`."""
    names = sorted(_names(a) | _names(b))
    found = []
    for name in names:
        one, other = _task(a, name), _task(b, name)
        change = _change(one, other)
        if change is not None:
            found.append({"task_id": name, "change": change, "a": one, "b": other})
    return found


def _names(side: Side) -> set[str]:
    return side.rows.tasks.keys() | side.metrics.keys()


def _task(side: Side, name: str) -> Json | None:
    if name not in _names(side):
        return None
    row = side.rows.tasks.get(name) or timeline.TaskRow(name)
    ended = row.finishes > 0 or (name not in side.rows.tasks)
    return {
        "status": row.status or ("reused" if name not in side.rows.tasks else "unfinished"),
        "severity": side.severities.get(name, row.severity),
        "attempts": row.attempts,
        "retries": row.retries,
        "duration_seconds": row.seconds if row.finishes else None,
        "metrics": side.metrics.get(name, {}),
        "well": ended and row.status != "failed" and side.severities.get(name, row.severity) not in ("fatal", "error"),
        "ended": ended,
    }


def _change(one: Json | None, other: Json | None) -> str | None:
    if one is None or other is None:
        return "appeared" if one is None else "vanished"
    if one["ended"] != other["ended"]:
        return "finished" if other["ended"] else "unfinished"
    if one["well"] != other["well"]:
        return "newly_well" if other["well"] else "newly_failing"
    if one["metrics"] != other["metrics"] and one["metrics"] and other["metrics"]:
        return "flipped"
    same = all(one[name] == other[name] for name in ("status", "severity", "attempts", "retries"))
    return None if same else "changed"


# -- phases, metrics


def phase_changes(a: Side, b: Side) -> list[Json]:
    """For each phase the finished stays of both sides, and where tasks pair, how their times compare."""
    stays = [finished_stays(side.rows.phases) for side in (a, b)]
    spent = [_by_task(side.rows.phases) for side in (a, b)]
    found: list[Json] = []
    for phase in sorted(stays[0].keys() | stays[1].keys()):
        times = [side.get(phase, []) for side in stays]
        before, after = (side.get(phase, {}) for side in spent)
        pairs = [(before[name], after[name]) for name in before.keys() & after.keys()]
        found.append(
            {
                "phase": phase,
                "stays": {"a": len(times[0]), "b": len(times[1])},
                "total_seconds": {"a": sum(times[0]), "b": sum(times[1])},
                "median_seconds": {"a": _median(times[0]), "b": _median(times[1])},
                "paired": _paired_times(pairs),
            }
        )
    return found


def _by_task(phases: Iterable[timeline.PhaseRow]) -> dict[str, dict[str, float]]:
    spent: dict[str, dict[str, float]] = {}
    for row in phases:
        if row.task_id is not None and row.seconds is not None and row.ended_by != "run_finished":
            tasks = spent.setdefault(row.phase, {})
            tasks[row.task_id] = tasks.get(row.task_id, 0.0) + row.seconds
    return spent


def _paired_times(pairs: list[tuple[float, float]]) -> Json | None:
    longer = sum(other > one for one, other in pairs)
    shorter = sum(other < one for one, other in pairs)
    if longer + shorter < MIN_PAIRS:
        return None
    return {
        "tasks": len(pairs),
        "longer": longer,
        "shorter": shorter,
        "median_difference_seconds": median(other - one for one, other in pairs),
        "p_value": sign_test(longer, shorter),
    }


def metric_changes(a: Side, b: Side) -> list[Json]:
    """For each metric the means over the tasks that both sides have, and for yes-or-no metrics how many flipped."""
    both = sorted(a.metrics.keys() & b.metrics.keys())
    names = sorted({name for side in (a, b) for metrics in side.metrics.values() for name in metrics})
    found = []
    for name in names:
        pairs = [
            (a.metrics[task][name], b.metrics[task][name])
            for task in both
            if name in a.metrics[task] and name in b.metrics[task]
        ]
        if not pairs:
            continue
        better, worse = sum(x < y for x, y in pairs), sum(x > y for x, y in pairs)
        binary = all(value in (0.0, 1.0) for pair in pairs for value in pair)
        test = sign_test(better, worse) if better + worse >= MIN_PAIRS else None
        means = {"a": _mean(x for x, _ in pairs), "b": _mean(y for _, y in pairs)}
        found.append(
            {
                "metric": name,
                "tasks": len(pairs),
                "mean": means,
                "higher": better,
                "lower": worse,
                "test": "mcnemar" if binary else "sign",
                "p_value": test,
            }
        )
    return found


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p-value of so many wins and losses under a fair coin; exact. McNemar's exact test is the same."""
    count, least = wins + losses, min(wins, losses)
    if count == 0:
        return 1.0
    tail = sum(comb(count, number) for number in range(least + 1))
    return min(1.0, float(2 * tail / 2**count))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


# -- numbers and parameters


def _changed_numbers(a: Mapping[str, Any], b: Mapping[str, Any]) -> Json:
    """Return members that differ, as {a, b}; a missing number is 0."""
    names = dict.fromkeys([*a, *b])
    return {name: {"a": a.get(name, 0), "b": b.get(name, 0)} for name in names if a.get(name, 0) != b.get(name, 0)}


def parameter_changes(a: Json, b: Json) -> list[Json]:
    """Return members of the two requests that differ, by their dotted names; a missing one is None."""
    before, after = dict(_leaves(a)), dict(_leaves(b))
    names = sorted(before.keys() | after.keys())
    changed = [name for name in names if before.get(name) != after.get(name)]
    return [{"name": name, "a": before.get(name), "b": after.get(name)} for name in changed[:MAX_PARAMETERS]]


def _leaves(value: Json, prefix: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    for name, member in value.items():
        path = f"{prefix}{name}"
        if isinstance(member, dict) and member and depth < 50:
            yield from _leaves(member, f"{path}.", depth + 1)
        else:
            yield path, member
