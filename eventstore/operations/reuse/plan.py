"""Planning reuse: the facts of a stored run for `projections.reuse`, the choice of a source, and the plan.

    plan = plan_reuse(source_run, Wanted(benchmark_id="toy", k=2, strategy="avg"))
    plan.refusal, plan.tasks, plan.reused, plan.severity_counts
    choice = choose_source(results_folder, wanted)     # newest compatible run, and what speaks against it

`reuse_apply.apply_reuse` does what a plan says. Nothing is written here, and artifacts are compared with their
recorded checksums, so that a plan doesn't promise what can't be kept.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from eventstore.errors import CompassError, InputError
from eventstore.format.events import Json, TasksLoaded
from eventstore.results import artifacts
from eventstore.results.checkpoint_store import Checkpoint, Evaluation, read_checkpoint, validate_checkpoint
from eventstore.results.fingerprints import ArtifactLimits
from eventstore.results.result import Issue, Result, parse_issues
from eventstore.results.task_dirs import AttemptDir, TaskDir, find_task, task_dirs
from eventstore.run.directory import PROGRESS_NAME, RUN_INFO_NAME, find_runs, open_run, read_json_file
from eventstore.run.names import CHECKPOINT_FILE
from eventstore.run.request_record import StoredRequest, read_request, section
from eventstore.stream.scan import scan
from projections.reuse import (
    SHORT_RESULT,
    AttemptFacts,
    CheckpointFacts,
    IssueFacts,
    ResultFacts,
    SourceFacts,
    TaskDecision,
    TaskFacts,
    Wanted,
    check_wanted,
    decide_task,
    refusal,
    rescore_refusal,
    severity_counts,
)


class ReusePlan(Struct, frozen=True, kw_only=True):
    """What a new run may take from `source`. `refusal` tells why it may take nothing; `warnings` are for people."""

    source: Path
    run_id: str
    wanted: Wanted
    refusal: str | None
    tasks: list[TaskDecision]
    warnings: list[str]
    total_tasks: int = 0

    @property
    def attempts_to_run(self) -> int:
        """How many attempts are left to run or to score again, those of tasks that left nothing behind included."""
        absent = max(0, self.total_tasks - len(self.tasks)) * self.wanted.k
        return absent + sum(one.action in ("run", "rescore") for task in self.tasks for one in task.attempts)

    @property
    def reused(self) -> list[str]:
        """Ids of the tasks that are kept whole."""
        return [task.task_id for task in self.tasks if task.action == "keep"]

    @property
    def severity_counts(self) -> dict[str, int]:
        """`reused_severity_counts` of `reuse_loaded`."""
        return severity_counts(self.tasks)


class SourceChoice(Struct, frozen=True):
    """The run to reuse, or None, and what a person should know: what was passed over, and why."""

    run_dir: Path | None
    notes: list[str]


def plan_reuse(
    source: str | os.PathLike[str], wanted: Wanted, *, check_files: bool = True, total_tasks: int | None = None
) -> ReusePlan:
    """Decide for every task and attempt of a run what a new run would do with it. Raises InputError, UsageError.

    With `check_files=False` stored artifacts are believed without comparing checksums. `total_tasks` is the number of
    planned tasks, from a caller that has read the stream; None: it is read here.
    """
    check_wanted(wanted)
    run_dir = open_run(source)
    return _plan(run_dir, read_request(run_dir), wanted, check_files, total_tasks)


def plan_like_source(run_dir: Path, stored: StoredRequest | None = None, total_tasks: int | None = None) -> ReusePlan:
    """Return the plan of a new run that asks for what `run_dir` asked for; artifacts are not compared.

    `stored` is the run's request and `total_tasks` as in `plan_reuse`, from a caller that has read them.
    """
    stored = read_request(run_dir) if stored is None else stored
    wanted = wanted_of(stored)
    check_wanted(wanted)
    return _plan(run_dir, stored, wanted, check_files=False, total_tasks=total_tasks)


def _plan(
    run_dir: Path, stored: StoredRequest, wanted: Wanted, check_files: bool, total_tasks: int | None
) -> ReusePlan:
    facts = source_facts(stored)
    reason = refusal(facts, wanted)
    tasks, problems = [], list(stored.problems)
    if reason is None:
        reader = FactReader(run_dir, stored, wanted, check_files)
        for task in _first_of_each(run_dir, problems):
            tasks.append(decide_task(reader.task(task), wanted))
    tasks.sort(key=lambda task: task.task_id)
    run_id = facts.run_id if isinstance(facts.run_id, str) else ""
    warnings = problems + _unlike(stored, wanted) + _short_results(tasks)
    return ReusePlan(
        source=run_dir,
        run_id=run_id,
        wanted=wanted,
        refusal=reason,
        tasks=tasks,
        warnings=warnings,
        total_tasks=max(planned_tasks(run_dir) if total_tasks is None else total_tasks, len(tasks)),
    )


def planned_tasks(run_dir: Path) -> int:
    """Return how many tasks a run loaded, by its stream, else by progress.json; 0 where neither says."""
    try:
        for record in scan(run_dir):
            if isinstance(record.event, TasksLoaded):
                loaded = record.event.payload.total_tasks
                return loaded if isinstance(loaded, int) else 0
    except (CompassError, OSError):
        pass
    total = (read_json_file(run_dir / PROGRESS_NAME).members or {}).get("total_tasks")
    return total if type(total) is int else 0


def _first_of_each(run_dir: Path, problems: list[str]) -> list[TaskDir]:
    """Task directories that can be read, one an id; AgentCompass, too, takes the first state that has the task."""
    found: dict[str, TaskDir] = {}
    for task in task_dirs(run_dir, lambda path, words: problems.append(f"{path}: {words}")):
        if task.problem is not None or task.task_id is None or not task.name_matches:
            problems.append(f"{task.relative}: {task.problem or 'is not the folder of its task'}")
        elif task.task_id in found:
            problems.append(f"{task.relative}: the task stands in {found[task.task_id].relative} as well")
        else:
            found[task.task_id] = task
    return list(found.values())


def _unlike(stored: StoredRequest, wanted: Wanted) -> list[str]:
    execution = section(stored.request, "execution")
    budget, patterns = execution.get("max_retries", 0), execution.get("retry_pattern_list") or []
    if (budget, list(patterns)) == (wanted.max_retries, list(wanted.retry_patterns)):
        return []
    return [f"the source ran with {budget} retries and patterns {patterns!r:.200}; this plan has {wanted.max_retries}"]


def _short_results(tasks: Sequence[TaskDecision]) -> list[str]:
    short = [task for task in tasks if task.action == "keep" and task.reason.startswith(SHORT_RESULT)]
    if not short:
        return []
    return [f"{len(short)} kept tasks have fewer attempts than asked for; the first is {short[0].task_id!r:.80}"]


def source_facts(stored: StoredRequest) -> SourceFacts:
    """Return what `run_info.json` says of a run that could be reused."""
    members = stored.run_info.members or {}
    request = section(members, "request")
    benchmark = section(request, "benchmark").get("id")
    return SourceFacts(
        schema=members.get("schema_version"),
        run_id=members.get("run_id"),
        benchmark_id=benchmark if isinstance(benchmark, str) else "",
        attempt_plan=section(section(request, "execution"), "attempts"),
    )


def wanted_of(stored: StoredRequest, **changes: Any) -> Wanted:
    """Return what a run asks for that is like the source: its benchmark, attempt plan, retry budget and patterns.

    `changes` are members of `Wanted` that it asks for otherwise; None leaves one as it is.
    """
    execution = section(stored.request, "execution")
    budget, patterns = execution.get("max_retries"), execution.get("retry_pattern_list")
    plan = stored.attempt_plan
    k, strategy = plan.get("k"), plan.get("strategy")
    like: Json = {
        "benchmark_id": stored.benchmark_id,
        "k": k if type(k) is int else 1,
        "strategy": strategy.strip().lower() if isinstance(strategy, str) and strategy.strip() else "avg",
        "max_retries": budget if type(budget) is int and budget >= 0 else 0,
        "retry_patterns": tuple(one for one in patterns if isinstance(one, str)) if isinstance(patterns, list) else (),
    }
    return Wanted(**(like | {name: value for name, value in changes.items() if value is not None}))


class FactReader:
    """Reads the facts of single tasks of one run."""

    def __init__(self, run_dir: Path, stored: StoredRequest, wanted: Wanted, check_files: bool = True) -> None:
        self._run_dir, self._wanted, self._check_files = run_dir, wanted, check_files
        self._plans = section(stored.run_info.members, "resolved_execution_plans")

    def task(self, task: TaskDir) -> TaskFacts:
        """Return the facts of one task. Of a task whose index AgentCompass refuses there is nothing to keep."""
        listed = {} if task.index_problems else {n: attempt for n, attempt in task.attempts.items() if attempt.listed}
        results = {number: attempt.read_result("artifacts") for number, attempt in listed.items()}
        attempts = {number: self._attempt(task, attempt, results[number]) for number, attempt in listed.items()}
        if task.published:
            attempts = self._stopped_early({number: one for number, one in attempts.items() if one.result is not None})
        return TaskFacts(
            task_id=task.task_id or "",
            published=task.published,
            attempts=attempts,
            attempt_plan=task.attempt_plan,
            problem=_task_problem(task, results),
        )

    def _stopped_early(self, attempts: dict[int, AttemptFacts]) -> dict[int, AttemptFacts]:
        """Return the attempts, where fewer than asked for ended with a success as stopped there."""
        last = max(attempts, default=0)
        if self._wanted.strategy != "pass" or not 0 < last < self._wanted.k:
            return attempts
        attempt = attempts[last]
        if attempt.result is None:
            return attempts
        result = ResultFacts(issues=attempt.result.issues, problem=attempt.result.problem, stop_requested=True)
        return {**attempts, last: AttemptFacts(number=last, result=result, checkpoint=attempt.checkpoint)}

    def _attempt(self, task: TaskDir, attempt: AttemptDir, stored: Result) -> AttemptFacts:
        task_id = task.task_id or ""
        found = read_checkpoint(attempt.path / CHECKPOINT_FILE) if attempt.has_checkpoint else None
        if task.published:
            result = self._whole(task_id, attempt, stored)
        else:
            result = self._terminal(task_id, attempt, found, stored)
        checkpoint = None if found is None else self.checkpoint(task_id, attempt, found)
        return AttemptFacts(number=attempt.number, result=result, checkpoint=checkpoint)

    def _whole(self, task_id: str, attempt: AttemptDir, result: Result) -> ResultFacts | None:
        if result.is_empty:
            return None
        problem = self._unfit(task_id, attempt, result)
        if attempt.number > self._wanted.k:
            problem = f"its number is beyond k = {self._wanted.k}"
        return ResultFacts(issues=_issues(result.issues), problem=problem)

    def _terminal(
        self, task_id: str, attempt: AttemptDir, found: Checkpoint | None, result: Result
    ) -> ResultFacts | None:
        scheduler = found.scheduler if found is not None else None
        if scheduler is None or not scheduler.has_value:
            return None
        if (scheduler.task_id, scheduler.attempt) != (task_id, attempt.number):
            return ResultFacts(problem="its terminal state is that of another attempt")
        return ResultFacts(
            issues=_issues(result.issues),
            problem=self._unfit(task_id, attempt, result) if result.exists else "its result is missing",
            stop_requested=scheduler.stop_requested,
            failed=scheduler.status == "failed",
        )

    def _unfit(self, task_id: str, attempt: AttemptDir, result: Result) -> str | None:
        if result.problem is not None:
            return f"its result {result.problem}"
        if not result.classified:
            return "its failure is of an older schema and not classified"
        if result.faults:
            return f"its result breaks the schema: {result.faults[0]}"
        manifest = section(result.members, "artifacts").get("declared_artifacts")
        return None if manifest is None else self._unfit_artifacts(task_id, attempt.number, manifest)

    def _unfit_artifacts(self, task_id: str, attempt: int, manifest: Any) -> str | None:
        if not self._check_files:
            return None
        try:
            artifacts.validate_manifest(manifest, self._run_dir, self._limits(task_id, attempt))
        except CompassError as error:
            return f"its artifacts can't be kept: {error.message}"
        return None

    def _limits(self, task_id: str, attempt: int) -> ArtifactLimits:
        return ArtifactLimits.from_plan(plan_of(self._plans, task_id, attempt).get("artifact_limits"))

    def checkpoint(self, task_id: str, attempt: AttemptDir, found: Checkpoint) -> CheckpointFacts | None:
        """Return the facts of one evaluation checkpoint; None where the file has no such section."""
        problem = found.problem or found.problems.get("evaluation")
        evaluation = found.evaluation
        if problem is None and evaluation is None:
            return None
        if evaluation is None:
            return CheckpointFacts(problem=problem)
        try:
            if self._check_files:
                limits = self._limits(task_id, attempt.number)
                validate_checkpoint(self._run_dir, found.path, task_id, attempt.number, limits)
            specs = artifacts.manifest_specs(evaluation.artifacts if isinstance(evaluation.artifacts, dict) else {})
        except CompassError as error:
            return CheckpointFacts(problem=error.message)
        return _checkpoint_facts(evaluation, [(spec.source, spec.destination) for spec in specs])


def recovery_refusal(run_dir: Path, task_id: str, attempt: int, wanted: Wanted) -> str | None:
    """Return why one attempt can't be scored again from its checkpoint, in words; None where it can.

    All checks: identity, completed agent, mode, network policy, coverage of declared artifacts, inputs, checksums.
    """
    task = find_task(run_dir, task_id)
    folder = task.attempts.get(attempt) if task is not None else None
    if folder is None:
        return "there is no such attempt"
    found = read_checkpoint(folder.path / CHECKPOINT_FILE)
    reader = FactReader(run_dir, read_request(run_dir), wanted)
    return rescore_refusal(reader.checkpoint(task_id, folder, found) if found.exists else None, wanted)


def _task_problem(task: TaskDir, results: Mapping[int, Result]) -> str | None:
    if task.index_problems:
        return f"AgentCompass refuses its index: {task.index_problems[0]}"
    return task.unfinished_reason(results) if task.published else None


def _checkpoint_facts(evaluation: Evaluation, specs: Sequence[tuple[str, str]]) -> CheckpointFacts:
    result = evaluation.part("run_result", "issues") or {}
    return CheckpointFacts(
        mode=str(evaluation.source_evaluation_mode),
        older=evaluation.is_older,
        network_policy=evaluation.network_policy if isinstance(evaluation.network_policy, dict) else {},
        artifacts=specs,
        issues=_issues(parse_issues(result.get("issues", []))),
    )


def plan_of(plans: Json, task_id: str, attempt: int) -> Json:
    """Return the resolved plan of one attempt, or an empty object."""
    return section(section(section(plans, task_id), "attempts"), str(attempt))


def _issues(issues: list[Issue]) -> list[IssueFacts]:
    return [IssueFacts(issue.severity, issue.phase, issue.code, issue.message) for issue in issues]


# --- choosing a source


def choose_source(root: str | os.PathLike[str], wanted: Wanted, exclude: Path | None = None) -> SourceChoice:
    """Return the newest compatible run at or below a folder, by its start.

    A newer run that died or holds fewer finished tasks than an older one is passed over, and `notes` say so; where
    nothing better is there it is chosen, and `notes` say that, too.
    """
    candidates, notes = [], list[str]()
    for run in find_runs(root, lambda path, words: notes.append(f"{path}: {words}")):
        if exclude is not None and run.path.resolve() == exclude.resolve():
            continue
        stored = read_request(run.path)
        reason = refusal(source_facts(stored), wanted)
        if reason is None:
            candidates.append(_candidate(run.path, stored))
        else:
            notes.append(f"{run.path}: not compatible: {reason}")
    if not candidates:
        return SourceChoice(None, [*notes, f"{root}: no run that could be reused"])
    candidates.sort(key=lambda candidate: candidate.started, reverse=True)
    best = max(candidates, key=lambda candidate: (candidate.finished_tasks, candidate.ended, candidate.started))
    for newer in candidates[: candidates.index(best)]:
        notes.append(f"{newer.run_dir}: newer, and passed over: {newer.lacks(best)}")
    if not best.ended:
        notes.append(f"{best.run_dir}: did not finish; it holds {best.finished_tasks} finished tasks")
    return SourceChoice(best.run_dir, notes)


class _Candidate(Struct, frozen=True):
    run_dir: Path
    started: float
    ended: bool
    finished_tasks: int

    def lacks(self, other: "_Candidate") -> str:
        if self.finished_tasks < other.finished_tasks:
            return f"{self.finished_tasks} finished tasks against {other.finished_tasks} in {other.run_dir.name}"
        return "it did not finish"


def _candidate(run_dir: Path, stored: StoredRequest) -> _Candidate:
    members = stored.run_info.members or {}
    try:
        started = datetime.fromisoformat(str(members.get("started_at"))).timestamp()
    except (ValueError, OverflowError):
        started = 0.0
    finished = sum(task.published for task in task_dirs(run_dir))
    return _Candidate(run_dir, started, isinstance(members.get("status"), str), finished)


def require_source(choice: SourceChoice, root: object) -> Path:
    """Return the chosen run; raises InputError with the last note where there is none."""
    if choice.run_dir is None:
        raise InputError(choice.notes[-1] if choice.notes else f"{root}: holds no {RUN_INFO_NAME}", root)
    return choice.run_dir
