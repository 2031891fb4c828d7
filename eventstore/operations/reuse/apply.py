"""Doing what a reuse plan says: results, checkpoints, artifacts and plans brought into the new run.

    applied = apply_reuse(plan, target_run, append=recorder.append, total_tasks=60)

The target then stands alone: artifacts are there (shared with the source by reflink or hard link where that is
possible), references point into the target, and each reused result says where it came from
(`artifacts.reuse_history`). What can't be brought over after all is told and runs again. `reuse_loaded` is appended
last, with the counts of what really was kept.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from eventstore.errors import CompassError, DamagedError, MalformedLineError, RefusedError
from eventstore.format.codec import dump_compact, dump_pretty, parse_object
from eventstore.format.events import Json, ReuseLoaded, ReuseLoadedPayload
from eventstore.redaction.redactor import redact, redact_keys, redact_text
from eventstore.results import artifacts
from eventstore.results.checkpoint_store import materialise_checkpoint, read_checkpoint, save_scheduler
from eventstore.results.fingerprints import ArtifactLimits
from eventstore.results.result import adapt_older
from eventstore.results.schema import RenderedResult, render_members
from eventstore.results.store import TaskStore
from eventstore.results.task_dirs import AttemptDir, TaskDir, find_task
from eventstore.run.directory import RUN_INFO_NAME, read_json_file
from eventstore.run.json_files import read_raw_members
from eventstore.run.names import ARTIFACTS_NAME, CHECKPOINT_FILE, OLDER_TASK_SCHEMA, RESULT_FILE
from eventstore.run.request_record import section
from eventstore.stream.atomic_file import replace_file
from projections.reuse import TaskDecision

from .plan import ReusePlan, plan_of

SavePlans = Callable[[Json], Any]


class Applied(Struct, frozen=True, kw_only=True):
    """What was brought over. `reused`: tasks kept whole. `resumed`: attempts kept or to be scored again, by task.

    `failed`: tasks and attempts (`<task>/<attempt>`) that could not be brought over, with the reason in words.
    """

    reused: list[str]
    resumed: dict[str, list[int]]
    failed: dict[str, str]
    tasks_to_run: int
    severity_counts: dict[str, int]


def apply_reuse(
    plan: ReusePlan,
    target_run: Path,
    *,
    append: Callable[[ReuseLoaded], Any] | None = None,
    total_tasks: int | None = None,
    task_ids: Collection[str] | None = None,
    save_plans: SavePlans | None = None,
    link: bool = True,
    durable: bool = True,
) -> Applied:
    """Bring what `plan` keeps into `target_run` and append `reuse_loaded`.

    `task_ids` limits it to the new run's own tasks. `total_tasks` is their number (default: the tasks of the plan).
    `save_plans` gets the resolved plans of kept attempts; by default they are written to the target's `run_info.json`.
    Raises RefusedError where the plan refuses its source, or source and target are one.
    """
    if plan.refusal is not None:
        raise RefusedError(f"{plan.source}: nothing can be reused: {plan.refusal}", plan.source)
    if plan.source.resolve() == target_run.resolve():
        raise RefusedError(f"{target_run}: a run can't reuse itself", target_run)
    tasks = [task for task in plan.tasks if task_ids is None or task.task_id in task_ids]
    mover = _Mover(plan, target_run, link=link, durable=durable)
    kept = [task for task in tasks if mover.bring(task)]
    plans = mover.plans
    if plans:
        (save_plans or (lambda found: write_plans(target_run, found, durable=durable)))(plans)
    total = total_tasks if total_tasks is not None else len(tasks)
    counts: dict[str, int] = {}
    for task in kept:
        if task.severity:
            counts[task.severity] = counts.get(task.severity, 0) + 1
    to_run = max(0, total - len(kept))
    if append is not None:
        payload = ReuseLoadedPayload(reused_tasks=len(kept), tasks_to_run=to_run, reused_severity_counts=counts)
        append(ReuseLoaded(payload=payload))
    reused = [task.task_id for task in kept]
    return Applied(
        reused=reused, resumed=mover.resumed, failed=mover.failed, tasks_to_run=to_run, severity_counts=counts
    )


class _Mover:
    """Brings single tasks over; collects what failed and which plans belong to what was kept."""

    def __init__(self, plan: ReusePlan, target_run: Path, *, link: bool, durable: bool) -> None:
        self._plan, self._source, self._target = plan, plan.source, target_run
        self._store = TaskStore(target_run, durable=durable)
        self._link, self._durable = link, durable
        members = read_json_file(self._source / RUN_INFO_NAME).members
        self._source_plans = section(members, "resolved_execution_plans")
        self.plans: Json = {}
        self.resumed: dict[str, list[int]] = {}
        self.failed: dict[str, str] = {}

    def bring(self, decision: TaskDecision) -> bool:
        """Bring one task over as decided; whether it was kept whole."""
        task = find_task(self._source, decision.task_id)
        if task is None or decision.action == "run":
            return False
        present = find_task(self._target, decision.task_id)
        if present is not None and present.published:
            return decision.action == "keep"
        try:
            if decision.action == "keep":
                self._keep(task, decision)
                return True
            self._resume(task, decision)
        except CompassError as error:
            self.failed[decision.task_id] = error.message
        return False

    def _keep(self, task: TaskDir, decision: TaskDecision) -> None:
        task_id = decision.task_id
        results = {}
        for attempt in decision.attempts:
            self._checkpoint(task, attempt.attempt, required=False)
            results[attempt.attempt] = self._result(task, task.attempts[attempt.attempt])
        category = task.category if isinstance(task.category, str) else None
        self._store.publish(
            task_id,
            category=category,
            ground_truth=task.ground_truth,
            attempt_plan=task.attempt_plan,
            attempts=results,
            append=False,
        )
        self._note_plans(task_id, [attempt.attempt for attempt in decision.attempts])

    def _resume(self, task: TaskDir, decision: TaskDecision) -> None:
        for attempt in decision.attempts:
            try:
                if attempt.action == "keep":
                    self._keep_attempt(task, decision.task_id, attempt.attempt)
                elif attempt.action == "rescore":
                    self._checkpoint(task, attempt.attempt, required=True)
                else:
                    continue
            except CompassError as error:
                self.failed[f"{decision.task_id}/{attempt.attempt}"] = error.message
                continue
            self.resumed.setdefault(decision.task_id, []).append(attempt.attempt)

    def _keep_attempt(self, task: TaskDir, task_id: str, number: int) -> None:
        attempt = task.attempts[number]
        self._checkpoint(task, number, required=False)
        folder = self._store.attempt_dir(task_id, number)
        self._store.save_result(task_id, number, self._result(task, attempt))
        before = read_checkpoint(attempt.path / CHECKPOINT_FILE).scheduler
        fatal = attempt.read_result().severity == "fatal"
        save_scheduler(
            folder / CHECKPOINT_FILE,
            task_id,
            number,
            status=before.status if before is not None else "failed" if fatal else "completed",
            retries=0,
            stop_requested=before is not None and before.stop_requested,
            error=before.error if before is not None else "",
            durable=self._durable,
        )
        self._note_plans(task_id, [number])

    def _checkpoint(self, task: TaskDir, number: int, *, required: bool) -> None:
        """A completed result keeps its checkpoint where that is sound; a result to be scored again needs it."""
        attempt, task_id = task.attempts[number], task.task_id or ""
        if not attempt.has_checkpoint or not (required or self._plan.wanted.checkpoint_resume):
            return
        target = self._store.attempt_dir(task_id, number) / CHECKPOINT_FILE
        try:
            materialise_checkpoint(
                self._source,
                attempt.path / CHECKPOINT_FILE,
                self._target,
                target,
                task_id,
                number,
                self._limits(task_id, number),
                link=self._link,
                durable=self._durable,
            )
        except CompassError:
            if required:
                raise

    def _limits(self, task_id: str, attempt: int) -> ArtifactLimits:
        return ArtifactLimits.from_plan(plan_of(self._source_plans, task_id, attempt).get("artifact_limits"))

    def _result(self, task: TaskDir, attempt: AttemptDir) -> RenderedResult:
        """Return the stored result with its provenance; everything but its artifacts member keeps its bytes."""
        members = read_raw_members(attempt.path / RESULT_FILE)
        if task.schema == OLDER_TASK_SCHEMA:
            members = _adapted(members, attempt.path / RESULT_FILE)
        found = _artifacts(members)
        history = {"source_run": str(self._source), "retry_count": attempt.read_result().retry_count}
        found["reuse_history"] = history
        if found.get("declared_artifacts") is not None:
            folder = self._store.attempt_dir(task.task_id or "", attempt.number) / ARTIFACTS_NAME
            found["declared_artifacts"] = artifacts.materialise(
                found["declared_artifacts"],
                self._source,
                self._target,
                folder.relative_to(self._target).as_posix(),
                self._limits(task.task_id or "", attempt.number),
                link=self._link,
                durable=self._durable,
            )
        members |= {"artifacts": Raw(dump_compact(found)), "retry_count": Raw(b"0")}
        severities = {issue.severity for issue in attempt.read_result().issues}
        return RenderedResult(render_members(members), severities)

    def _note_plans(self, task_id: str, attempts: list[int]) -> None:
        for number in attempts:
            plan = plan_of(self._source_plans, task_id, number)
            if plan:
                self.plans.setdefault(task_id, {"attempts": {}})["attempts"][str(number)] = redact_keys(plan)


def _parsed(content: bytes, path: Path) -> Json:
    try:
        return parse_object(content)
    except MalformedLineError as error:
        raise DamagedError(f"{path}: is {error}".replace("of the line", "of the file"), path) from None


def _artifacts(members: dict[str, Raw]) -> Json:
    raw = members.get("artifacts")
    try:
        return {} if raw is None else parse_object(bytes(raw))
    except MalformedLineError:
        return {}


def _adapted(members: dict[str, Raw], path: Path) -> dict[str, Raw]:
    """Return a result of the older schema in today's shape; its error text becomes a diagnostic."""
    values = _parsed(dump_compact({name: _value(raw) for name, raw in members.items()}), path)
    issues = adapt_older(values)
    if issues is None:
        raise RefusedError(f"{path}: its failure is of an older schema and not classified", path)
    found = dict(section(values, "artifacts"))
    if values.get("error"):
        texts = [text for text in (found.get("execution_diagnostics"), str(values["error"])) if text]
        found = {**found, "execution_diagnostics": redact_text("\n".join(texts))}
    changed = {"issues": redact([msgspec.structs.asdict(issue) for issue in issues]), "artifacts": found}
    kept = {name: raw for name, raw in members.items() if name != "error"}
    return kept | {name: Raw(dump_compact(value)) for name, value in changed.items()}


def _value(raw: Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return parse_object(b'{"value":' + bytes(raw) + b"}")["value"]


def write_plans(target_run: Path, plans: Json, *, durable: bool = True) -> None:
    """Add resolved plans to a run's `run_info.json`; those that stand there stay. Nobody else may be writing it."""
    path = target_run / RUN_INFO_NAME
    stored = read_json_file(path)
    if stored.members is None:
        raise DamagedError(f"{path}: {stored.problem or 'is missing'}", path)
    members = dict(stored.members)
    members["resolved_execution_plans"] = joined_plans(section(members, "resolved_execution_plans"), plans)
    replace_file(path, dump_pretty(members, sort_keys=True), durable=durable)


def joined_plans(first: Json, second: Json) -> Json:
    """Merge two plan records, attempt by attempt; the first wins."""
    joined: Json = {}
    for source in (second, first):
        for task_id, entry in source.items():
            attempts = section(entry, "attempts")
            joined.setdefault(task_id, {"attempts": {}})["attempts"].update(attempts)
    return joined
