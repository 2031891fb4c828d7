"""What `verify` sees below `details/`: task results, retries, checkpoints and artifacts, turned into plain facts.

The other half of the composer `verifying`: files are read here, the rules are in `projections`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from eventstore.errors import DamagedError, InputError, RefusedError, UsageError
from eventstore.format.events import Json
from eventstore.results.artifacts import validate_manifest
from eventstore.results.checkpoint_store import Evaluation, read_checkpoint
from eventstore.results.fingerprints import ArtifactLimits
from eventstore.results.task_dirs import AttemptDir, Result, TaskDir, task_dirs
from eventstore.run.names import ARTIFACTS_NAME, CHECKPOINT_FILE, RESULT_FILE
from projections.verify.checkpoints import CheckpointFacts, check_answer, check_checkpoint, check_manifest
from projections.verify.details import AttemptFacts, RetryFacts, TaskFacts
from projections.verify.findings import Notes
from projections.verify.plans import TaskPlans, parse_plan

_SNAPSHOTS = ("run_result", "prepared_task")


class DetailsReader:
    """Walks the details of one run. `files` and `bytes` count what was read; `tasks` yields facts for the rules."""

    def __init__(
        self,
        run_dir: Path,
        notes: Notes,
        run_id: str | None,
        run_info: Json | None,
        plans: dict[str, TaskPlans] | None,
        *,
        live: bool,
        artifacts: bool = True,
    ) -> None:
        self.run_dir, self.notes, self.run_id, self.live = run_dir, notes, run_id, live
        self.info = run_info or {}
        self.plans = plans
        self._compares_artifacts = artifacts
        self._has_checkpoints = False
        self._without_checkpoint: list[dict[str, Any]] = []
        self.files = self.bytes = 0

    def tasks(self) -> Iterator[TaskFacts]:
        """Yield facts of every task directory; checkpoints and artifacts are checked on the way."""
        for task in task_dirs(self.run_dir, self._note_entry):
            self._count(task.path / "task.json")
            for path in task.leftovers:
                self._note_leftover(path, task.task_id)
            yield self._facts(task)
        if self._has_checkpoints:
            for about in self._without_checkpoint:
                words = "the result has no checkpoint.json, and others of the run have"
                self.notes.add("checkpoint_missing", words, **about)

    def _facts(self, task: TaskDir) -> TaskFacts:
        problem = task.problem
        return TaskFacts(
            path=task.relative,
            name=task.path.name,
            state=task.state,
            task_id=task.task_id,
            problem=problem,
            shape=[words for words in task.problems if words != problem],
            name_matches=task.name_matches,
            category=task.category,
            attempt_plan=task.attempt_plan,
            published=task.published,
            begun=task.is_begun,
            attempts=[self._attempt(task, attempt) for attempt in task.attempts.values()],
        )

    def _attempt(self, task: TaskDir, attempt: AttemptDir) -> AttemptFacts:
        path = f"{task.relative}/{attempt.path.name}"
        evaluation = self._check_checkpoint(task, attempt, path) if attempt.has_checkpoint else None
        if not attempt.has_result:
            return AttemptFacts(attempt.number, path, attempt.listed, attempt.exists, retries=self._retries(attempt))
        result = attempt.read_result("artifacts", "final_answer")
        self._count(attempt.path / RESULT_FILE)
        declared = result.members.get("artifacts")
        manifest = declared.get("declared_artifacts") if isinstance(declared, dict) else None
        if manifest is not None and not attempt.has_checkpoint:
            self._check_artifacts(manifest, task, attempt, f"{path}/{RESULT_FILE}")
        if not attempt.has_checkpoint and task.state is not None:  # layout v2 has none
            self._without_checkpoint.append({"file": path, "task_id": task.task_id, "attempt": attempt.number})
        if evaluation is not None and result.is_result:
            answer = _snapshot(evaluation, "run_result").final_answer
            about: Any = {"task_id": task.task_id, "attempt": attempt.number}
            check_answer(self.notes, result.members.get("final_answer"), answer, f"{path}/{RESULT_FILE}", about)
        return AttemptFacts(
            number=attempt.number,
            path=path,
            listed=attempt.listed,
            exists=attempt.exists,
            has_result=True,
            result_problems=attempt.result_faults(result) if task.published else _readable(result),
            status=result.status,
            severity=result.severity if result.is_result and result.classified else None,
            retry_count=result.retry_count,
            metrics=result.metrics,
            only_retry_count=result.is_empty,
            retries=self._retries(attempt),
        )

    def _retries(self, attempt: AttemptDir) -> list[RetryFacts]:
        facts = []
        for retry in attempt.read_retries():
            self._count(retry.path)
            path = self._relative(retry.path)
            facts.append(RetryFacts(path, retry.problem, retry.task_id, retry.attempt, retry.retry, retry.max_retries))
        return facts

    # -- checkpoints and artifacts

    def _check_checkpoint(self, task: TaskDir, attempt: AttemptDir, path: str) -> Evaluation | None:
        self._has_checkpoints = True
        file = attempt.path / CHECKPOINT_FILE
        self._count(file)
        found = read_checkpoint(file)
        evaluation = found.evaluation
        facts = CheckpointFacts(
            path=f"{path}/{CHECKPOINT_FILE}",
            task_id=task.task_id,
            attempt=attempt.number,
            problem=found.problem or next((f"{name}: {words}" for name, words in found.problems.items()), None),
            evaluation=None if evaluation is None else _identity(evaluation),
            names={} if evaluation is None else _named(evaluation),
        )
        check_checkpoint(self.notes, facts, self.run_id, reuses="reused_from" in self.info)
        if evaluation is not None and evaluation.artifacts is not None:
            self._check_artifacts(evaluation.artifacts, task, attempt, facts.path)
        return evaluation

    def _check_artifacts(self, manifest: Any, task: TaskDir, attempt: AttemptDir, file: str) -> None:
        about: Any = {"file": file, "task_id": task.task_id, "attempt": attempt.number}
        directory = f"{task.relative}/{attempt.path.name}/{ARTIFACTS_NAME}"
        if not check_manifest(self.notes, manifest, directory, about) or not self._compares_artifacts:
            return
        try:
            stored = validate_manifest(manifest, self.run_dir, self._limits(task.task_id, attempt.number), workers=1)
        except DamagedError as error:
            self.notes.add("artifact_differs", self._words(error.message), **about)
        except RefusedError as error:
            self.notes.add("artifact_refused", self._words(error.message), **about)
        except InputError as error:
            self.notes.add("unreadable", self._words(error.message), **about)
        except UsageError as error:
            self.notes.add("artifact_manifest", self._words(error.message), **about)
        else:
            self.files += sum(artifact.fingerprint.file_count for artifact in stored)
            self.bytes += sum(artifact.fingerprint.size_bytes for artifact in stored)

    def _limits(self, task_id: str | None, attempt: int) -> ArtifactLimits:
        plans: Any = self.info.get("resolved_execution_plans")
        entry = self.plans.get(task_id) if self.plans is not None and task_id is not None else None
        if entry is not None and str(attempt) in entry.attempts:
            plans = {task_id: {"attempts": {str(attempt): parse_plan(entry.attempts[str(attempt)])}}}
        for name in (task_id, "attempts", str(attempt), "artifact_limits"):
            plans = plans.get(name) if isinstance(plans, dict) else None
        try:
            return ArtifactLimits.from_plan(plans)
        except UsageError:
            return ArtifactLimits()

    # -- odds and ends

    def _note_entry(self, path: str, words: str) -> None:
        if "leftover" in words:
            self._note_leftover(Path(path), None)
        else:
            self.notes.add("details_entry", words, file=self._relative(Path(path)))

    def _note_leftover(self, path: Path, task_id: str | None) -> None:
        if not self.live:
            words = "a temporary file of a write that did not end"
            self.notes.add("leftover_file", words, file=self._relative(path), task_id=task_id)

    def _words(self, message: str) -> str:
        return message.replace(f"{self.run_dir}{os.sep}", "")

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.run_dir).as_posix()

    def _count(self, path: Path) -> None:
        try:
            self.bytes += path.lstat().st_size
            self.files += 1
        except OSError:
            return


def _readable(result: Result) -> list[str]:
    """Return what is wrong with the result of an attempt whose task may still be under way."""
    return [result.problem] if result.problem else result.faults


class _Snapshot(Struct, gc=False):
    task_id: Any | UnsetType = UNSET
    final_answer: Any | UnsetType = UNSET


def _identity(evaluation: Evaluation) -> Json:
    names = ("schema_version", "task_id", "attempt", "source_run_id", "source_evaluation_mode", "run_completed")
    return {name: getattr(evaluation, name) for name in names}


def _named(evaluation: Evaluation) -> Json:
    """Return task ids inside the snapshots."""
    found = {name: _snapshot(evaluation, name).task_id for name in _SNAPSHOTS}
    return {name: task_id for name, task_id in found.items() if task_id is not UNSET}


def _snapshot(evaluation: Evaluation, name: str) -> _Snapshot:
    """Return the wanted members of a snapshot; one that can't be read has none, and is the reader's matter."""
    raw: Raw | UnsetType = getattr(evaluation, name)
    try:
        return _Snapshot() if raw is UNSET else msgspec.json.decode(raw, type=_Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Snapshot()
