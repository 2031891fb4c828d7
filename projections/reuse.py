"""What of a run another one may reuse, decided from facts alone: per task and per attempt, with the reason.

The rules are those of AgentCompass 1.0.1 (specification, "Reuse validation", "Evaluation Checkpoints"; docs/reuse.md):

- a whole result is kept unless an issue of it would be retried, and then only within a retry budget;
- a terminal attempt of an unfinished task is kept by the same test;
- else an attempt whose agent completed is scored again from its checkpoint, and everything else runs again.

Reading disks, comparing checksums and choosing directories is done by `eventstore.operations.reuse.plan`, which hands
the facts in.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from eventstore.errors import UsageError
from eventstore.format.events import Json

Action: TypeAlias = Literal["keep", "rescore", "run", "skip"]
"""keep: the result stands. rescore: the agent's work stands, scoring is done again. run: the agent works again. skip:
the strategy needs no more attempts."""

RUN_SCHEMAS = ("agentcompass.run_info.v3", "agentcompass.run_info.v2")
STRATEGIES = ("avg", "pass")
RESUMABLE_MODES = ("fresh", "none")
SHORT_RESULT = "its result has only"
"""How the reason begins for a kept task with fewer attempts than were asked for."""
_MATCHED_CHARACTERS = 1 << 20


class Wanted(Struct, frozen=True, kw_only=True):
    """The request of the new run, as reuse compares it. The last three count only where they are given (not None).

    `retry_patterns` are regular expressions over the message and the code of error issues; fatal issues match always.
    `artifacts` lists (source, destination) that the new run's verifier declares.
    """

    benchmark_id: str
    k: int
    strategy: str
    max_retries: int = 0
    retry_patterns: Sequence[str] = ()
    checkpoint_resume: bool = True
    evaluation_mode: str | None = None
    network_policy: Json | None = None
    artifacts: Sequence[tuple[str, str]] | None = None


class SourceFacts(Struct, frozen=True, kw_only=True):
    """The run that would be reused: `run_info.json`'s schema and id, and its request's benchmark and attempt plan."""

    schema: object
    run_id: object
    benchmark_id: str
    attempt_plan: Json


class IssueFacts(Struct, frozen=True):
    severity: str
    phase: str
    code: str
    message: str


class ResultFacts(Struct, frozen=True, kw_only=True):
    """A result that could be kept. `problem` tells why not: unreadable, unclassified, artifacts gone or changed.

    `stop_requested`: the strategy asked for no more attempts after it. `failed`: the attempt ended as failed.
    """

    issues: Sequence[IssueFacts] = ()
    problem: str | None = None
    stop_requested: bool = False
    failed: bool = False


class CheckpointFacts(Struct, frozen=True, kw_only=True):
    """An evaluation checkpoint. `problem` tells why it can't be used; `issues` are those of the agent's own result."""

    mode: str = ""
    older: bool = False
    network_policy: Json = {}
    artifacts: Sequence[tuple[str, str]] = ()
    issues: Sequence[IssueFacts] = ()
    problem: str | None = None


class AttemptFacts(Struct, frozen=True, kw_only=True):
    """One attempt. In an unfinished task `result` is there only where the attempt was terminal."""

    number: int
    result: ResultFacts | None = None
    checkpoint: CheckpointFacts | None = None


class TaskFacts(Struct, frozen=True, kw_only=True):
    """One task of the source. `published`: a whole result stands under a final state, with this `attempt_plan`."""

    task_id: str
    published: bool
    attempts: Mapping[int, AttemptFacts]
    attempt_plan: Json = {}
    problem: str | None = None


class AttemptDecision(Struct, frozen=True):
    """What would be done with one attempt, and why."""

    attempt: int
    action: Action
    reason: str


class TaskDecision(Struct, frozen=True, kw_only=True):
    """What would be done with a task: `keep` (all of it, it counts as reused), `resume` (some of it), `run`.

    `severity` is the highest issue severity of a kept task, "" for none.
    """

    task_id: str
    action: Literal["keep", "resume", "run"]
    reason: str
    severity: str = ""
    attempts: Sequence[AttemptDecision] = ()


def refusal(source: SourceFacts, wanted: Wanted) -> str | None:
    """Return why nothing of a run may be reused, in words; None where it may."""
    if source.schema not in RUN_SCHEMAS:
        return f"its schema is {source.schema!r:.80}, and {' or '.join(RUN_SCHEMAS)} can be reused"
    if not isinstance(source.run_id, str) or not source.run_id.strip():
        return "its run_info.json has no run_id"
    if not source.benchmark_id or source.benchmark_id != wanted.benchmark_id:
        return f"its benchmark is {source.benchmark_id!r:.80}, and {wanted.benchmark_id!r:.80} is asked for"
    plan = normal_plan(source.attempt_plan)
    if plan != (wanted.k, wanted.strategy):
        stored = "missing" if plan is None else f"k = {plan[0]}, strategy {plan[1]}"
        return f"its attempt plan is {stored}, and k = {wanted.k}, strategy {wanted.strategy} is asked for"
    return None


def normal_plan(plan: Json) -> tuple[int, str] | None:
    """(k, strategy) of a stored attempt plan, or None where it is none."""
    k, strategy = plan.get("k"), plan.get("strategy")
    if set(plan) != {"k", "strategy"} or type(k) is not int or k < 1 or not isinstance(strategy, str):
        return None
    return (k, strategy.strip().lower()) if strategy.strip() else None


def check_wanted(wanted: Wanted) -> None:
    """Raises UsageError for what no run can ask for."""
    if type(wanted.k) is not int or wanted.k < 1:
        raise UsageError("the number of attempts must be an integer from 1")
    if not wanted.strategy or wanted.strategy != wanted.strategy.strip().lower():
        raise UsageError(f"strategy {wanted.strategy!r:.80} is no strategy")
    if wanted.max_retries < 0:
        raise UsageError("the retry budget must not be negative")
    for pattern in wanted.retry_patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"retry pattern {pattern!r:.80} is no regular expression: {error}") from None


def retry_reason(issues: Iterable[IssueFacts], wanted: Wanted) -> str | None:
    """Return why a result with these issues would be retried, in words; None where it would not."""
    issues = list(issues)
    if wanted.max_retries == 0:
        return None
    if any(issue.severity == "fatal" for issue in issues):
        return "it has a fatal issue"
    for issue in issues:
        for pattern in wanted.retry_patterns if issue.severity == "error" else ():
            if re.search(pattern, issue.message[:_MATCHED_CHARACTERS]) or re.search(pattern, issue.code):
                return f"its error matches the retry pattern {pattern!r:.80}"
    return None


def decide_task(task: TaskFacts, wanted: Wanted) -> TaskDecision:
    """Return what would be done with one task of the source."""
    unfit = task.problem or (_unfit(task, wanted) if task.published else None)
    if task.published and unfit is None:
        retried = [reason for attempt in task.attempts.values() if (reason := _retried(attempt, wanted)) is not None]
        if not retried:
            return _kept(task, wanted)
        return _resumed(task, wanted, f"kept results would be retried: {retried[0]}", keep=True)
    if task.published:
        # A whole result that is refused takes its attempts with it: only checkpoints are left.
        return _resumed(task, wanted, f"its result can't be kept: {unfit}", keep=False)
    return _resumed(task, wanted, task.problem or "it was not finished", keep=task.problem is None)


def _unfit(task: TaskFacts, wanted: Wanted) -> str | None:
    if normal_plan(task.attempt_plan) != (wanted.k, wanted.strategy):
        return "its attempt plan is another"
    for attempt in task.attempts.values():
        if attempt.result is not None and attempt.result.problem is not None:
            return f"attempt {attempt.number}: {attempt.result.problem}"
    return None


def _retried(attempt: AttemptFacts, wanted: Wanted) -> str | None:
    reason = retry_reason(attempt.result.issues, wanted) if attempt.result is not None else None
    return None if reason is None else f"attempt {attempt.number}: {reason}"


def _kept(task: TaskFacts, wanted: Wanted) -> TaskDecision:
    results = [attempt.result for attempt in task.attempts.values() if attempt.result is not None]
    found = {issue.severity for result in results for issue in result.issues}
    severity = next((name for name in ("fatal", "error", "warning") if name in found), "")
    attempts = [AttemptDecision(number, "keep", "its result stands") for number in sorted(task.attempts)]
    reason = "its result is whole"
    if wanted.strategy != "pass" and len(results) < wanted.k:  # AgentCompass keeps such a task and runs no more of it
        reason = f"{SHORT_RESULT} {len(results)} of {wanted.k} attempts, and the others won't run"
    return TaskDecision(task_id=task.task_id, action="keep", reason=reason, severity=severity, attempts=attempts)


def _resumed(task: TaskFacts, wanted: Wanted, why: str, *, keep: bool) -> TaskDecision:
    decisions = [
        decide_attempt(task.attempts.get(number) or AttemptFacts(number=number), wanted, keep=keep)
        for number in range(1, wanted.k + 1)
    ]
    if wanted.strategy == "pass" and any(_stops(task, decision) for decision in decisions):
        decisions = [_or_skip(decision) for decision in decisions]
    actions = {decision.action for decision in decisions}
    action: Literal["resume", "run"] = "resume" if actions - {"run"} else "run"
    return TaskDecision(task_id=task.task_id, action=action, reason=why, attempts=decisions)


def _stops(task: TaskFacts, decision: AttemptDecision) -> bool:
    attempt = task.attempts.get(decision.attempt)
    result = attempt.result if attempt is not None else None
    return decision.action == "keep" and result is not None and result.stop_requested and not result.failed


def _or_skip(decision: AttemptDecision) -> AttemptDecision:
    if decision.action == "keep":
        return decision
    return AttemptDecision(decision.attempt, "skip", "an attempt that is kept has passed already")


def decide_attempt(attempt: AttemptFacts, wanted: Wanted, *, keep: bool) -> AttemptDecision:
    """Return what would be done with one attempt of a task that is not kept whole. `keep`: its result may be kept."""
    number, result = attempt.number, attempt.result
    refused = rescore_refusal(attempt.checkpoint, wanted)
    if result is None or not keep:
        why = "it has no result" if result is None else "its result can't be kept"
        return _rescored_or_run(number, why, refused)
    if result.problem is not None:
        return _rescored_or_run(number, result.problem, refused)
    if result.failed and refused is None and attempt.checkpoint is not None and attempt.checkpoint.mode == "fresh":
        return AttemptDecision(number, "rescore", "it failed after its agent had completed")
    reason = retry_reason(result.issues, wanted)
    if reason is None:
        return AttemptDecision(number, "keep", "it is finished")
    before = retry_reason((issue for issue in result.issues if issue.phase != "evaluate"), wanted)
    if before is not None:
        return AttemptDecision(number, "run", f"{reason}, and not in scoring")
    return _rescored_or_run(number, reason, refused)


def _rescored_or_run(number: int, why: str, refused: str | None) -> AttemptDecision:
    if refused is None:
        return AttemptDecision(number, "rescore", f"{why}, and its agent had completed")
    return AttemptDecision(number, "run", f"{why}, and {refused}")


def rescore_refusal(checkpoint: CheckpointFacts | None, wanted: Wanted) -> str | None:
    """Return why an attempt can't be scored again from its checkpoint, in words; None where it can."""
    if checkpoint is None:
        return "there is no checkpoint"
    if not wanted.checkpoint_resume:
        return "resuming from checkpoints is switched off"
    if checkpoint.problem is not None:
        return f"its checkpoint can't be used: {checkpoint.problem}"
    if checkpoint.mode not in RESUMABLE_MODES:
        return f"its checkpoint has evaluation mode {checkpoint.mode!r:.40}"
    if checkpoint.older:
        return "its checkpoint is of an older schema without classified snapshots"
    return _differs(checkpoint, wanted) or _retried_again(checkpoint, wanted)


def _differs(checkpoint: CheckpointFacts, wanted: Wanted) -> str | None:
    if wanted.evaluation_mode is not None and checkpoint.mode != wanted.evaluation_mode:
        return f"its checkpoint has evaluation mode {checkpoint.mode}, not {wanted.evaluation_mode}"
    policy = wanted.network_policy
    if policy is not None and checkpoint.network_policy and not same_policy(checkpoint.network_policy, policy):
        return "its checkpoint was made under another network policy"
    if wanted.artifacts is not None and checkpoint.mode == "fresh":
        lacking = [source for source, target in wanted.artifacts if (source, target) not in set(checkpoint.artifacts)]
        if lacking:
            return f"its checkpoint lacks the declared artifact {lacking[0]!r:.200}"
    return None


def _retried_again(checkpoint: CheckpointFacts, wanted: Wanted) -> str | None:
    reason = retry_reason((issue for issue in checkpoint.issues if issue.phase != "evaluate"), wanted)
    return None if reason is None else f"its agent's work would be retried: {reason}"


def same_policy(first: Json, second: Json) -> bool:
    """Return whether two network policies mean the same; empty lists may be left out of a stored one."""
    names = first.keys() | second.keys()
    return all((first.get(name) or None) == (second.get(name) or None) for name in names)


def severity_counts(decisions: Iterable[TaskDecision]) -> dict[str, int]:
    """Return `reused_severity_counts`: how many kept tasks have which highest severity."""
    counts: dict[str, int] = {}
    for decision in decisions:
        if decision.action == "keep" and decision.severity:
            counts[decision.severity] = counts.get(decision.severity, 0) + 1
    return counts
