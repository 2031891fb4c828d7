"""What a writer hands in for one attempt, checked against the schema of `result.json` and rendered.

Evaluator facts (`metrics`, `final_answer`, and the task's `ground_truth`) are written as they come; everything else is
redacted, by the names of keys and by the form of values.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from eventstore.errors import UsageError
from eventstore.format.codec import dump_compact, dump_pretty
from eventstore.format.events import Json
from eventstore.redaction.redactor import redact
from eventstore.run.names import RETRY_SCHEMA

from .result import ATTEMPT_STATUSES, ISSUE_PHASES, NAMESPACES, SEVERITIES, Issue

STRATEGIES = ("avg", "pass")
FACTS = ("metrics", "final_answer", "ground_truth")


class AttemptResult(Struct, frozen=True, kw_only=True):
    """The outcome of one attempt. `meta` has the namespaces `benchmark` and `harness`, either may be left out.

    `retry_count` counts the runtime retries that this attempt used up.
    """

    status: str
    metrics: Json = {}
    final_answer: Any = None
    trajectory: Json = {}
    issues: Sequence[Issue] = ()
    artifacts: Json = {}
    analysis_result: Json = {}
    meta: Json = {}
    retry_count: int = 0

    @property
    def severities(self) -> set[str]:
        """The severities of its issues."""
        return {issue.severity for issue in self.issues}


class RetryDetail(Struct, frozen=True, kw_only=True):
    """Why a result was discarded: the members of `agentcompass.retry.v1` next to the result itself."""

    retry: int
    max_retries: int
    stage: str
    scope: str = "attempt"
    matched_pattern: str = ""
    retry_delay_seconds: float | None = None
    issues: Sequence[Issue] = ()


class RenderedResult(Struct, frozen=True):
    """A result that is bytes already, of a stored one that is reused: its `result.json` and its issues' severities."""

    content: bytes
    severities: set[str]


def check_result(result: AttemptResult | RenderedResult) -> None:
    """Raises UsageError, in words, for what the schema doesn't allow."""
    if isinstance(result, RenderedResult):
        return
    if result.status not in ATTEMPT_STATUSES:
        raise UsageError(f"attempt status {result.status!r:.80} is none of {', '.join(ATTEMPT_STATUSES)}")
    for name, value in result.metrics.items():
        _check_metric(name, value)
    for name in ("trajectory", "artifacts", "analysis_result", "meta"):
        if not isinstance(getattr(result, name), dict):
            raise UsageError(f"{name} must be an object")
    if set(result.meta) - set(NAMESPACES):
        raise UsageError(f"meta has namespaces {', '.join(NAMESPACES)} and nothing else")
    if type(result.retry_count) is not int or result.retry_count < 0:
        raise UsageError("retry_count must be an integer from 0")
    for issue in result.issues:
        check_issue(issue)


def _check_metric(name: object, value: object) -> None:
    if not isinstance(name, str) or not name or name != name.strip():
        raise UsageError(f"metric name {name!r:.80} must be text without white space around it")
    if type(value) not in (bool, int, float) or (isinstance(value, float) and not math.isfinite(value)):
        raise UsageError(f"metric {name!r:.80} must be a boolean or a finite number, not {value!r:.80}")


def check_issue(issue: Issue) -> None:
    """Raises UsageError unless severity, phase, code and message are what a classified issue has."""
    if issue.severity not in SEVERITIES:
        raise UsageError(f"issue severity {issue.severity!r:.80} is none of {', '.join(SEVERITIES)}")
    if issue.phase not in ISSUE_PHASES:
        raise UsageError(f"issue phase {issue.phase!r:.80} is none of {', '.join(ISSUE_PHASES)}")
    if not issue.code.strip() or issue.code != issue.code.strip():
        raise UsageError("an issue's code must be text without white space around it")
    if not issue.message.strip():
        raise UsageError("an issue's message must not be empty")


def check_attempt_plan(plan: Json, attempts: Sequence[int]) -> Json:
    """{k, strategy} of a task, checked. Raises UsageError for anything else, and for an attempt beyond k."""
    k, strategy = plan.get("k"), plan.get("strategy")
    if set(plan) - {"k", "strategy"} or type(k) is not int or k < 1:
        raise UsageError("an attempt plan is {k, strategy} with k an integer from 1")
    if not isinstance(strategy, str) or not strategy.strip():
        raise UsageError("an attempt plan needs a strategy")
    if max(attempts, default=1) > k:
        raise UsageError(f"attempt {max(attempts)} is beyond the plan's k = {k}")
    return {"k": k, "strategy": strategy.strip().lower()}


def result_members(result: AttemptResult, secrets: Sequence[str] = ()) -> Json:
    """Return the members of `result.json` but the retry count, redacted."""
    issues = [structs.asdict(issue) for issue in result.issues]
    meta = {name: result.meta.get(name) or {} for name in NAMESPACES}
    return {
        "status": result.status,
        "metrics": dict(result.metrics),
        "final_answer": result.final_answer,
        "trajectory": redact(result.trajectory, secrets),
        "issues": redact(issues, secrets),
        "artifacts": redact(result.artifacts, secrets),
        "analysis_result": redact(result.analysis_result, secrets),
        "meta": redact(meta, secrets),
    }


def redact_outcome(members: Json, secrets: Sequence[str] = ()) -> Json:
    """Any object that describes an outcome, redacted but for the evaluator's facts on its top level."""
    return {name: value if name in FACTS else redact({name: value}, secrets)[name] for name, value in members.items()}


def render_result(result: AttemptResult | RenderedResult, secrets: Sequence[str] = ()) -> bytes:
    """Return the bytes of `result.json`."""
    if isinstance(result, RenderedResult):
        return result.content
    return dump_pretty({**result_members(result, secrets), "retry_count": result.retry_count}, sort_keys=False)


def render_retry(
    task_id: str, category: str | None, attempt: int, detail: RetryDetail, discarded: Json, secrets: Sequence[str] = ()
) -> bytes:
    """Return the bytes of a retry's diagnostics. Raises UsageError for an issue that is not classified."""
    for issue in detail.issues:
        check_issue(issue)
    members = {
        "schema_version": RETRY_SCHEMA,
        "task_id": task_id,
        "category": category,
        "attempt": attempt,
        **structs.asdict(detail),
        "issues": [structs.asdict(issue) for issue in detail.issues],
    }
    record = redact_outcome(members, secrets)
    record["discarded_result"] = redact_outcome(discarded, secrets)
    return dump_pretty(record, sort_keys=False)


def render_members(members: Mapping[str, Raw]) -> bytes:
    """Return the bytes of `result.json` from members that are JSON already."""
    parts = (dump_compact(name) + b":" + bytes(raw) for name, raw in members.items())
    compact = b"{" + b",".join(parts) + b"}"
    try:
        return msgspec.json.format(compact, indent=2) + b"\n"
    except (msgspec.DecodeError, RecursionError):  # NaN, which JSON has no form for
        return compact + b"\n"
