"""The score of a run: what counts for it, and its recomputation as AgentCompass 1.0.1 computes it.

    outcome_of("completed", "")                 # "answered"
    fold = ScoreFold(metrics_json)
    fold.add(TaskScores(task_id="t1", category="easy", attempts={1: AttemptScores("completed", {"correct": True})}))
    fold.differences()                          # where metrics.json is not what the details give

What counts, for every attempt that a run planned:

- **answered**: its result is published, its status is `completed`, and it has no fatal and no error issue;
- **failed by infrastructure**: its result is published, with a fatal or error issue, or with a status that is an error;
- **never run**: it was planned, and it has no published result of its own (or one that was cancelled or skipped). The
  strategy `pass` needs no more attempts of a task after its first success: those are not planned.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import fsum, isclose, isnan
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from eventstore.format.events import Json
from eventstore.format.values import as_object, short

Outcome: TypeAlias = Literal["answered", "infrastructure_failed", "never_run"]

UNCATEGORIZED = "__uncategorized__"
PRIMARY_METRICS = ("correct", "score")
"""The metrics that a benchmark of AgentCompass may have as its first."""
NOT_RUN_STATUSES = frozenset({"cancelled", "interrupted", "skipped"})
POLICIES = ("micro_weighted", "category_mean", "category_hierarchy")
REDUCERS = ("native", "avg", "pass")
COUNTS = ("total", "evaluated", "error", "unavailable", "invalidated")
MAX_K = 1_000_000
_KINDS = ("binary_success", "scalar")
_NODES = ("leaf", "unweighted", "weighted", "weighted_by_count")


class AttemptScores(Struct, frozen=True, gc=False):
    """What of one attempt's result counts. `severity` is the highest of its issues, "" for none."""

    status: str | None
    metrics: Json = {}
    severity: str = ""


class TaskScores(Struct, frozen=True, gc=False):
    """One task with a published result: its attempts by number."""

    task_id: str
    category: Any
    attempts: Mapping[int, AttemptScores]


# -- what counts


def outcome_of(status: str | None, severity: str) -> Outcome:
    """Return what an attempt with a published result counts as, from its status and its highest issue severity."""
    if severity in ("fatal", "error"):
        return "infrastructure_failed"
    if status is None or status in NOT_RUN_STATUSES:
        return "never_run"
    return "answered" if status == "completed" else "infrastructure_failed"


class Coverage(Struct, frozen=True, kw_only=True):
    """How many attempts count how. `score_answered`: mean of the headline metric over the answered attempts.

    `reason` says in words why nothing was answered, or why that is not known; None where something was.
    """

    planned: int
    answered: int
    infrastructure_failed: int
    never_run: int
    score_answered: float | None = None
    reason: str | None = None

    @property
    def usable(self) -> bool:
        """True where a score can be used: at least one attempt was answered."""
        return self.answered > 0


class CoverageFold(Struct, kw_only=True):
    """Counts attempts as tasks with published results are added."""

    k: int = 1
    strategy: str = "avg"
    tasks: int = 0
    answered: int = 0
    infrastructure_failed: int = 0
    not_needed: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of_plan(cls, run_info: Json) -> "CoverageFold":
        """Return an empty fold with k and strategy of the request in a run_info.json; k is 1 where none is recorded."""
        plan: Any = run_info
        for name in ("request", "execution", "attempts"):
            plan = plan.get(name) if isinstance(plan, dict) else None
        k, strategy = (plan.get(name) if isinstance(plan, dict) else None for name in ("k", "strategy"))
        return cls(
            k=k if isinstance(k, int) and 0 < k < MAX_K else 1,
            strategy=strategy if isinstance(strategy, str) else "avg",
        )

    def add(self, attempts: Mapping[int, AttemptScores]) -> None:
        """Count one task's attempts."""
        self.tasks += 1
        for attempt in attempts.values():
            outcome = outcome_of(attempt.status, attempt.severity)
            if outcome == "infrastructure_failed":
                self.infrastructure_failed += 1
            elif outcome == "answered":
                self.answered += 1
                for name in PRIMARY_METRICS:
                    value = attempt.metrics.get(name)
                    if isinstance(value, bool | int | float) and not isnan(value):
                        self.values.setdefault(name, []).append(float(value))
        if self.strategy == "pass":
            self.not_needed += _not_needed(attempts, self.k)

    def coverage(self, total_tasks: int, *, stored: bool = True) -> Coverage:
        """Return the counts for a run of so many tasks. `stored`: the run has task details."""
        planned = max(total_tasks, self.tasks) * self.k - self.not_needed
        values = next((self.values[name] for name in PRIMARY_METRICS if name in self.values), [])
        reason = None
        if not stored:
            reason = "its task details are not stored"
        elif not self.answered:
            reason = "no attempt was answered"
        return Coverage(
            planned=planned,
            answered=self.answered,
            infrastructure_failed=self.infrastructure_failed,
            never_run=max(0, planned - self.answered - self.infrastructure_failed),
            score_answered=fsum(values) / len(values) if values else None,
            reason=reason,
        )


def _not_needed(attempts: Mapping[int, AttemptScores], k: int) -> int:
    """Return attempts that the strategy `pass` left out after a success."""
    last = max(attempts, default=0)
    if not 0 < last < k or not _stops(attempts[last], "correct"):
        return 0
    return k - last


def _stops(attempt: AttemptScores, primary: str) -> bool:
    return attempt.status not in NOT_RUN_STATUSES and attempt.metrics.get(primary) is True


# -- recomputation


class Difference(Struct, frozen=True):
    """One number of metrics.json that the details do not give. `place` names the series and the member."""

    place: str
    stored: Any
    computed: Any


class _Counts(Struct):
    """Tasks of one scope by state, and the values of those that were evaluated."""

    total: int = 0
    evaluated: int = 0
    error: int = 0
    unavailable: int = 0
    invalidated: int = 0
    values: list[float] = field(default_factory=list)


class _Breakdown(Struct):
    """A value with its counts; `weight` is the number of tasks evaluated in it."""

    value: float | None
    counts: _Counts
    weight: float


class _Series(Struct):
    """One series of metrics.json and what is folded for it. `skipped` says why its values are not recomputed."""

    stored: Json
    name: str
    metric_id: str
    kind: str
    reducer: str
    skipped: str | None = None
    overall: _Counts = field(default_factory=_Counts)
    categories: dict[str, _Counts] = field(default_factory=dict)


class ScoreFold:
    """Recomputes a metrics.json from the details of its run, by its own k, strategy, reducers and aggregation.

    `hierarchy` is the benchmark's `category_hierarchy`, where the run records one. `problems` says why the score, or a
    part of it, can't be recomputed; it is never a guess.
    """

    def __init__(self, metrics: Json, hierarchy: Any = None) -> None:
        self.problems: list[str] = []
        self._metrics, self._hierarchy = metrics, hierarchy
        self._k, self._strategy = metrics.get("k"), metrics.get("strategy")
        self._policy = metrics.get("aggregation")
        stored = metrics.get("series")
        rows = [row for row in stored if isinstance(row, dict)] if isinstance(stored, list) else []
        self._series = [_series(row, self._policy) for row in rows]
        self._primary = next((s.metric_id for s in self._series if s.stored.get("role") == "headline"), "correct")
        self._broken: str | None = None
        if type(self._k) is not int or self._k < 1:
            self._broken = f"k is {short(self._k)}"
        elif self._strategy not in ("avg", "pass"):
            self._broken = f"the strategy {short(self._strategy)} is not known here"
        elif not rows:
            self._broken = "metrics.json has no series"

    def refuse(self, problem: str) -> None:
        """Note that AgentCompass itself can't compute a score from these details; the first reason is kept."""
        self._broken = self._broken or problem

    def add(self, task: TaskScores) -> None:
        """Fold one task."""
        if self._broken is not None:
            return
        problem = self._problem(task)
        if problem is not None:
            self._broken = f"{short(task.task_id)}: {problem}"
            return
        category = _category(task.category)
        for series in self._series:
            state, value, error = self._reduce(task.attempts, series)
            for scope in (series.overall, series.categories.setdefault(category, _Counts())):
                _count(scope, state, value, error)

    def _problem(self, task: TaskScores) -> str | None:
        if not task.attempts:
            return "it has no attempt"
        beyond = [number for number in task.attempts if number > self._k or number < 1]  # type: ignore[operator]
        if beyond:
            return f"attempt {beyond[0]} is beyond k"
        for series in self._series:
            for number, attempt in task.attempts.items():
                value = attempt.metrics.get(series.metric_id)
                if value is not None and (series.kind == "binary_success") != (type(value) is bool):
                    return f"attempt {number} has {series.metric_id} = {short(value)}, which is not a {series.kind}"
        return None

    def _reduce(self, attempts: Mapping[int, AttemptScores], series: _Series) -> tuple[str, float | None, bool]:
        """Return the state of a task, its value where it was evaluated, and whether it counts as an error."""
        k: int = self._k  # type: ignore[assignment]
        found = [attempts[number].metrics.get(series.metric_id) for number in sorted(attempts)]
        values = [value for value in found if value is not None]
        errors = any(attempt.severity in ("fatal", "error") for attempt in attempts.values())
        fatal = any(attempt.severity == "fatal" for attempt in attempts.values())
        missing = k - len(attempts)
        last = max(attempts)
        if not fatal and last == len(attempts) and self._strategy == "pass" and _stops(attempts[last], self._primary):
            missing = 0
        if fatal:
            return "invalidated", None, True
        value = _reduced(series.reducer, values, k)
        if value is not None:
            return "evaluated", value, errors or missing > 0
        return "unavailable", None, errors or missing > 0

    # -- the comparison

    def differences(self) -> Iterator[Difference]:
        """Yield every number of metrics.json that the details do not give, series by series.

        Reasons for which something was not recomputed are appended to `problems`.
        """
        if self._broken is not None:
            self.problems.append(self._broken)
            return
        failed = any(series.overall.invalidated for series in self._series)
        if self._metrics.get("evaluation_failed") is not failed:
            yield Difference("evaluation_failed", self._metrics.get("evaluation_failed"), failed)
        self.problems += dict.fromkeys(
            f"{series.name}: {series.skipped}" for series in self._series if series.skipped is not None
        )
        for series in self._series:
            yield from self._compare(series, "reference_value" if failed else "value")

    def _compare(self, series: _Series, member: str) -> Iterator[Difference]:
        stored, name = series.stored, series.name
        if series.skipped is not None:  # whose tasks it is of is known whatever its formula
            yield from _compare_counts(name, stored, series.overall, ("total",))
            return
        categories = {
            category: _Breakdown(_mean(counts.values), counts, float(counts.evaluated))
            for category, counts in sorted(series.categories.items())
        }
        value, nodes = self._value(series, categories)
        yield from _compare_counts(name, stored, series.overall, COUNTS)
        if value is not ...:
            yield from _compare_value(name, stored, value, member)
        yield from _compare_parts(name, "categories", stored, categories, member)
        if nodes is not None:
            yield from _compare_parts(name, "hierarchy", stored, nodes, member)

    def _value(self, series: _Series, categories: dict[str, _Breakdown]) -> tuple[Any, dict[str, _Breakdown] | None]:
        """Return the value of a series, or `...` where it is not recomputed, and the nodes of its hierarchy."""
        if self._policy == "micro_weighted":
            return _mean(series.overall.values), None
        if self._policy == "category_mean":
            return _mean([part.value for part in categories.values() if part.value is not None]), None
        try:
            nodes: dict[str, _Breakdown] = {}
            root = self._hierarchy["overall"]
            return _reduce_node("overall", "overall", root, categories, nodes).value, nodes
        except (KeyError, TypeError, ValueError, RecursionError):
            words = f"{series.name}: the benchmark's category_hierarchy is not recorded"
            if words not in self.problems:
                self.problems.append(words)
            return ..., None


def _series(stored: Json, policy: Any) -> _Series:
    metric, reducer, kind = (stored.get(name) for name in ("metric_id", "reducer", "kind"))
    name = stored.get("series_id")
    skipped = None
    if reducer not in REDUCERS:
        skipped = f"the reducer {short(reducer)} is not known here"
    elif stored.get("aggregation") != policy or policy not in POLICIES:
        skipped = f"the aggregation {short(stored.get('aggregation'))} is the benchmark's own"
    elif kind not in _KINDS:
        skipped = f"the kind {short(kind)} is not known here"
    return _Series(
        stored=stored,
        name=name if isinstance(name, str) else f"{metric}.{reducer}",
        metric_id=metric if isinstance(metric, str) else "",
        kind=kind if isinstance(kind, str) else "",
        reducer=reducer if isinstance(reducer, str) else "",
        skipped=skipped,
    )


def _category(value: Any) -> str:
    return (str(value).strip() if value not in (None, "", [], {}) else "") or UNCATEGORIZED


def _reduced(reducer: str, values: list[Any], k: int) -> float | None:
    if reducer == "native":
        return float(values[0]) if len(values) == 1 else None
    if reducer == "avg":
        return fsum(float(value) / k for value in values) if len(values) == k else None
    if reducer == "pass":
        if any(value is True for value in values):
            return 1.0
        return 0.0 if len(values) == k else None
    return None


def _count(scope: _Counts, state: str, value: float | None, error: bool) -> None:
    scope.total += 1
    scope.error += error
    setattr(scope, state, getattr(scope, state) + 1)
    if value is not None:
        scope.values.append(value)


def _mean(values: Iterable[float]) -> float | None:
    items = list(values)
    return fsum(item / len(items) for item in items) if items else None


def _reduce_node(
    name: str, path: str, node: Json, categories: dict[str, _Breakdown], nodes: dict[str, _Breakdown]
) -> _Breakdown:
    """Reduce one node of a category hierarchy, its children first; every node is kept in `nodes` by its path."""
    how = node.get("aggregation", "leaf")
    if how not in _NODES:
        raise ValueError(how)
    if how == "leaf":
        nodes[path] = found = categories.get(name, _Breakdown(None, _Counts(), 0.0))
        return found
    children: list[tuple[Json, _Breakdown]] = []
    for child, below in node["children"].items():
        segment = child.replace("~", "~0").replace("/", "~1")
        children.append((below, _reduce_node(child, f"{path}/{segment}", below, categories, nodes)))
    parts = [part for _, part in children]
    counts = _Counts(**{count: sum(getattr(part.counts, count) for part in parts) for count in COUNTS})
    valid = [(part.value, below.get("weight"), part.weight) for below, part in children if part.value is not None]
    nodes[path] = found = _Breakdown(_joined(how, valid), counts, fsum(part.weight for part in parts))
    return found


def _joined(how: str, valid: list[tuple[float, Any, float]]) -> float | None:
    if not valid:
        return None
    values = [value for value, _, _ in valid]
    if how == "unweighted":
        return _mean(values)
    if how == "weighted":
        weights = [float(weight or 0.0) for _, weight, _ in valid]
        scale = max(weights)
        if scale <= 0:
            raise ValueError("no positive weight")
        weights = [weight / scale for weight in weights]
    else:
        weights = [count for _, _, count in valid]
    whole = fsum(weights)
    return 0.0 if whole <= 0 else fsum(value * (weight / whole) for value, weight in zip(values, weights, strict=True))


def _compare_parts(
    name: str, member: str, stored: Json, computed: Mapping[str, _Breakdown], value_member: str
) -> Iterator[Difference]:
    parts = as_object(stored.get(member))
    for key in [*computed, *(key for key in parts if key not in computed)]:
        place = f"{name} {member}.{short(key)}"
        part, expected = parts.get(key), computed.get(key)
        if not isinstance(part, dict) or expected is None:
            yield Difference(place, "absent" if part is None else part, "absent" if expected is None else "present")
            continue
        yield from _compare_counts(place, part, expected.counts, COUNTS)
        yield from _compare_value(place, part, expected.value, value_member)
        if not _same(part.get("aggregation_weight"), expected.weight):
            yield Difference(f"{place} aggregation_weight", part.get("aggregation_weight"), expected.weight)


def _compare_counts(place: str, stored: Json, expected: _Counts, names: tuple[str, ...]) -> Iterator[Difference]:
    counts = as_object(stored.get("counts"))
    for name in names:
        if counts.get(name) != getattr(expected, name):
            yield Difference(f"{place} counts.{name}", counts.get(name), getattr(expected, name))


def _compare_value(place: str, stored: Json, value: float | None, member: str) -> Iterator[Difference]:
    """Yield the differences of two values that exclude each other: `member` is the one that must hold it."""
    for name in ("value", "reference_value"):
        expected = value if name == member else None
        if not _same(stored.get(name), expected):
            yield Difference(f"{place} {name}", stored.get(name), expected)


def _same(stored: Any, computed: float | None) -> bool:
    if computed is None or isinstance(stored, bool) or not isinstance(stored, int | float):
        return stored is computed
    return isclose(stored, computed, rel_tol=1e-12, abs_tol=1e-12)
