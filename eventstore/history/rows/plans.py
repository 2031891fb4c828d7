"""Rows of `plans`: resolved plans with one column for each policy, in both spellings that are in use.

The specification says `network_policy` and `verifier_network_policy`; AgentCompass 1.0.1 writes
`baseline_network_policy` and `evaluation_network_policy`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from eventstore.errors import MalformedLineError
from eventstore.format import codec
from eventstore.format.events import Json
from projections.timeline.rows import JsonText, PlanRow

from .tables import PlanTableRow, PlanTextRow
from .values import as_float, as_int, json_text, text

_NULL = Raw(b"null")


class PlanReader:
    """Turns the plans among rows into rows of tables; equal ones are read once. `seen` holds task and attempt."""

    def __init__(self, seen: Iterable[tuple[str | None, int | None]] = ()) -> None:
        self.seen = set(seen)
        self._numbers: dict[str, int] = {}

    def rows(self, rows: Iterable[Struct]) -> Iterator[Struct]:
        """Yield the same rows, plans replaced."""
        texts: list[PlanTextRow] = []
        for row in rows:
            yield self._row(row, texts) if isinstance(row, PlanRow) else row
        yield from texts

    def _row(self, row: PlanRow, texts: list[PlanTextRow]) -> PlanTableRow:
        self.seen.add((row.task_id, row.attempt))
        number = self._numbers.get(row.plan)
        if number is None:
            number = row.seq
            texts.append(PlanTextRow(plan_no=number, plan=row.plan, **_read_columns(row.plan)))
            if len(self._numbers) < 10_000:
                self._numbers[row.plan] = number
        return PlanTableRow(
            task_id=row.task_id,
            attempt=row.attempt,
            category=row.category,
            seq=row.seq,
            resolved_at=row.resolved_at,
            plan_no=number,
        )


def stored_plan_rows(run_info: Json, seen: set[tuple[str | None, int | None]]) -> Iterator[Struct]:
    """Yield plans that only run_info.json has: those of reused tasks."""
    plans = run_info.get("resolved_execution_plans")
    number = 0
    for task_id, entry in (plans if isinstance(plans, dict) else {}).items():
        attempts = entry.get("attempts") if isinstance(entry, dict) else None
        for name, plan in (attempts if isinstance(attempts, dict) else {}).items():
            attempt = as_int(int(name)) if str(name).isdecimal() and len(str(name)) < 19 else None
            key = (text(task_id), attempt)
            if key not in seen and isinstance(plan, dict):
                number -= 1
                yield PlanTableRow(task_id=key[0], attempt=attempt, source="run_info", plan_no=number)
                yield PlanTextRow(plan_no=number, plan=json_text(plan), **plan_columns(plan))


def plan_columns(plan: Json) -> Json:
    """Return what the table shows of a plan."""
    environment, evaluation = _object(plan.get("environment")), _object(plan.get("evaluation_environment"))
    return {
        "environment": text(environment.get("id")),
        "evaluation_environment": text(evaluation.get("id")),
        "evaluation_environment_mode": text(plan.get("evaluation_environment_mode")),
        "network_policy": _either(environment, "network_policy", "baseline_network_policy"),
        "run_network_policy": json_text(plan.get("run_network_policy")),
        "verifier_network_policy": _either(plan, "verifier_network_policy", "evaluation_network_policy"),
        "applied_recipes": json_text(plan.get("applied_recipes")),
        "run_timeout_seconds": _seconds(plan.get("run_timeout_seconds")),
        "evaluation_timeout_seconds": _seconds(plan.get("evaluation_timeout_seconds")),
    }


def _either(members: Json, name: str, other: str) -> JsonText | None:
    value = members.get(name)
    return json_text(members.get(other) if value is None else value)


def _seconds(value: Any) -> float | None:
    return as_float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class _Environment(Struct, gc=False):
    id: str | None = None
    network_policy: Raw = _NULL
    baseline_network_policy: Raw = _NULL


class _Plan(Struct, gc=False):
    environment: _Environment | None = None
    evaluation_environment: _Environment | None = None
    evaluation_environment_mode: str | None = None
    run_network_policy: Raw = _NULL
    verifier_network_policy: Raw = _NULL
    evaluation_network_policy: Raw = _NULL
    applied_recipes: Raw = _NULL
    run_timeout_seconds: float | None = None
    evaluation_timeout_seconds: float | None = None


_plan_decoder = msgspec.json.Decoder(_Plan)


def _read_columns(text: str) -> Json:
    """As `plan_columns`, from text: what is JSON there is copied, not parsed and written again."""
    try:
        plan = _plan_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return plan_columns(_parse(text))
    environment, evaluation = plan.environment or _Environment(), plan.evaluation_environment or _Environment()
    return {
        "environment": environment.id,
        "evaluation_environment": evaluation.id,
        "evaluation_environment_mode": plan.evaluation_environment_mode,
        "network_policy": _raw(environment.network_policy) or _raw(environment.baseline_network_policy),
        "run_network_policy": _raw(plan.run_network_policy),
        "verifier_network_policy": _raw(plan.verifier_network_policy) or _raw(plan.evaluation_network_policy),
        "applied_recipes": _raw(plan.applied_recipes),
        "run_timeout_seconds": plan.run_timeout_seconds,
        "evaluation_timeout_seconds": plan.evaluation_timeout_seconds,
    }


def _raw(value: Raw) -> JsonText | None:
    text = bytes(value)
    return None if text == b"null" else text.decode("utf-8")


def _parse(plan: str) -> Json:
    try:
        return codec.parse_object(codec.utf8(plan))
    except MalformedLineError:
        return {}


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
