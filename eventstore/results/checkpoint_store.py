"""Evaluation checkpoints: `checkpoint.json` beside an attempt's result (container v1, evaluation v4; v3 is readable).

    found = read_checkpoint(path)              # tolerant: problems in words; snapshots are not parsed
    validate_checkpoint(run_dir, path, "t", 1) # strict: identity, completed agent, files and checksums
    save_evaluation(run_dir, path, members)    # checked, redacted, atomic, at most 32 MiB
    materialise_checkpoint(source_run, path, target_run, target_path, "t", 1)

Sections (`evaluation`, `scheduler`, `artifact_transfer`) are replaced one at a time and the others stay byte for byte.
"""

import threading
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from eventstore.errors import DamagedError, OutputError, RefusedError, UsageError
from eventstore.format.codec import dump_compact, dump_pretty
from eventstore.format.events import Json
from eventstore.redaction.redactor import redact_keys
from eventstore.run.names import ARTIFACTS_NAME, CHECKPOINT_FILE, CHECKPOINT_SCHEMA, attempt_directory_name
from eventstore.run.request_record import section
from eventstore.stream.atomic_file import replace_file
from eventstore.stream.filesystem import REAL, FileSystem

from . import artifacts
from .checkpoint import (
    EVALUATION_SCHEMA,
    MAX_BYTES,
    OLDER_EVALUATION_SCHEMA,
    SCHEDULER_MEMBERS,
    Checkpoint,
    Evaluation,
    Scheduler,
    evaluation_of,
    read_checkpoint,
    read_sections,
)
from .fingerprints import ArtifactLimits, Budget, fingerprint
from .result import parse_issues

__all__ = [
    "EVALUATION_SCHEMA",
    "MAX_BYTES",
    "OLDER_EVALUATION_SCHEMA",
    "Checkpoint",
    "Evaluation",
    "Scheduler",
    "check_evaluation",
    "driver_inputs",
    "materialise_checkpoint",
    "read_checkpoint",
    "save_evaluation",
    "save_scheduler",
    "transfer_journal",
    "update_section",
    "validate_checkpoint",
]

SCHEDULER_SCHEMA = "agentcompass.logical_attempt.v2"
MODES = ("fresh", "reuse", "none")
RESUMABLE_MODES = ("fresh", "none")
SECTIONS = ("evaluation", "scheduler", "artifact_transfer")
_LOCKS = [threading.Lock() for _ in range(64)]


# --- checking


def check_evaluation(evaluation: Evaluation) -> None:
    """Raises DamagedError for what no evaluation checkpoint may say, files left aside."""
    if not isinstance(evaluation.task_id, str) or not evaluation.task_id.strip():
        raise DamagedError("the checkpoint names no task")
    if type(evaluation.attempt) is not int or evaluation.attempt < 1:
        raise DamagedError("the checkpoint's attempt is no integer from 1")
    if not isinstance(evaluation.source_run_id, str):
        raise DamagedError("the checkpoint names no source run")
    if evaluation.source_evaluation_mode not in MODES:
        raise DamagedError(f"the checkpoint has evaluation mode {evaluation.source_evaluation_mode!r:.80}")
    if evaluation.run_completed is not True:
        raise DamagedError("the agent's run was not completed")
    if not isinstance(evaluation.artifacts, dict):
        raise DamagedError("the checkpoint has no artifact manifest")
    _check_snapshots(evaluation)


def _check_snapshots(evaluation: Evaluation) -> None:
    result = evaluation.part("run_result", "task_id", "issues", "error")
    prepared = evaluation.part("prepared_task", "task_id")
    if not evaluation.is_older and (result is None or prepared is None):
        raise DamagedError("the checkpoint lacks the run's result or the prepared task")
    if result is not None:
        faults: list[str] = []
        issues = parse_issues(result.get("issues"), faults)
        if "error" in result or faults or any(issue.severity == "fatal" for issue in issues):
            raise DamagedError("the run's result is not classified, or has a fatal issue")
        if result.get("task_id") != evaluation.task_id:
            raise DamagedError("the run's result is that of another task")
    if prepared is not None and prepared.get("task_id") != evaluation.task_id:
        raise DamagedError("the prepared task is another")


def driver_inputs(evaluation: Evaluation, budget: Budget) -> Json:
    """Return fingerprints of the files that scoring without an environment reads; {} for any other mode.

    Raises RefusedError for media that were never captured and for paths that can't be found again.
    """
    prepared = evaluation.part("prepared_task", "input")
    if evaluation.source_evaluation_mode != "none" or prepared is None:
        return {}
    inputs = section(prepared, "input")
    found: Json = {}
    for item in _input_items(inputs):
        if item.get("url") and not item.get("data") and not item.get("path"):
            raise RefusedError("an input is only an address: it was not captured and may change")
        if item.get("path"):
            path = _input_path(item["path"], inputs.get("workspace"))
            details = fingerprint(path, budget)
            budget.spend(path, entries=details.file_count, size=details.size_bytes)
            found[str(path)] = msgspec.structs.asdict(details)
    return found


def _input_items(inputs: Json) -> list[Json]:
    lists = [inputs.get(name) or [] for name in ("files", "media")]
    if not all(isinstance(items, list) and all(isinstance(item, dict) for item in items) for items in lists):
        raise DamagedError("the prepared task's inputs are no lists of objects")
    return [item for items in lists for item in items]


def _input_path(value: Any, workspace: Any) -> Path:
    if not isinstance(value, str) or "\0" in value or not value.isprintable():
        raise RefusedError(f"input {value!r:.200} is no path")
    path = Path(value)
    if not path.is_absolute():
        path = Path(workspace if isinstance(workspace, str) else ".") / path
        if not path.is_absolute():
            raise RefusedError(f"input {value!r:.200} has no absolute workspace")
    return path


def validate_checkpoint(
    run_dir: Path, path: Path, task_id: str, attempt: int, limits: ArtifactLimits | None = None
) -> Evaluation:
    """Return the evaluation section of a checkpoint, checked against its place and the stored files.

    Raises DamagedError, RefusedError or InputError, in words, for the first reason not to use it.
    """
    evaluation = _evaluation_of(path)
    check_evaluation(evaluation)
    if (evaluation.task_id, evaluation.attempt) != (task_id, attempt):
        raise DamagedError(f"{path}: belongs to another task or attempt", path)
    folder = (path.parent / ARTIFACTS_NAME).relative_to(run_dir).as_posix()
    if evaluation.artifacts.get("directory") != folder:
        raise DamagedError(f"{path}: its artifacts are not those of the same attempt", path)
    _check_files(evaluation, run_dir, limits)
    return evaluation


def _evaluation_of(path: Path) -> Evaluation:
    found = read_checkpoint(path)
    problem = found.problem or found.problems.get("evaluation")
    if not found.exists or problem is not None:
        raise DamagedError(f"{path}: {problem or 'is missing'}", path)
    if found.evaluation is None:
        raise DamagedError(f"{path}: has no evaluation section", path)
    return found.evaluation


def _check_files(evaluation: Evaluation, run_dir: Path, limits: ArtifactLimits | None) -> None:
    recorded = evaluation.driver_inputs or {}
    if driver_inputs(evaluation, Budget(limits or ArtifactLimits())) != recorded:
        raise DamagedError("an input that scoring reads has changed since")
    artifacts.validate_manifest(evaluation.artifacts, run_dir, limits)


# --- writing


def update_section(path: Path, name: str, value: Any, *, durable: bool = True, files: FileSystem = REAL) -> None:
    """Replace one section (None: remove it) and leave the others as their bytes are; atomic.

    Raises OutputError beyond 32 MiB and for what can't be written, DamagedError where the file is no checkpoint.
    """
    if name not in SECTIONS:
        raise UsageError(f"{name!r:.80} is no section of a checkpoint")
    with _LOCKS[hash(str(path)) % len(_LOCKS)]:
        try:
            sections = read_sections(path)
        except FileNotFoundError:
            sections = {"schema_version": Raw(dump_compact(CHECKPOINT_SCHEMA))}
        if value is None:
            if sections.pop(name, None) is None:
                return
        else:
            sections[name] = Raw(_indented(dump_pretty(value, sort_keys=False)))
        content = _container(sections)
        if len(content) > MAX_BYTES:
            raise OutputError(f"{path}: would be {len(content)} bytes long, and the limit is {MAX_BYTES}", path)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content, durable=durable, files=files)


def _indented(rendered: bytes) -> bytes:
    return rendered.strip().replace(b"\n", b"\n  ")


def _container(sections: dict[str, Raw]) -> bytes:
    members = (b"  " + dump_compact(name) + b": " + bytes(raw) for name, raw in sections.items())
    return b"{\n" + b",\n".join(members) + b"\n}\n"


def save_evaluation(
    run_dir: Path,
    path: Path,
    members: Json,
    limits: ArtifactLimits | None = None,
    *,
    durable: bool = True,
    files: FileSystem = REAL,
) -> Evaluation:
    """Check and save the evaluation section of an attempt (`path`: its `checkpoint.json`).

    `members`: task_id, attempt, source_run_id, source_evaluation_mode, artifacts, run_result, prepared_task,
    network_policy. Driver inputs are fingerprinted here. Keys that announce secrets are masked by AgentCompass's own
    rule: what scoring reads of texts must stay what the agent wrote. Facts are never masked.
    """
    values = {"run_completed": True, "network_policy": {}, **members, "schema_version": EVALUATION_SCHEMA}
    values.pop("category", None)
    found = evaluation_of({**values, "driver_inputs": {}})
    inputs = driver_inputs(found, Budget(limits or ArtifactLimits()))
    check_evaluation(found)
    if found.is_older or found.attempt != _attempt_of(path):
        raise UsageError(f"{path}: is not the checkpoint of attempt {found.attempt!r:.40}", path)
    artifacts.validate_manifest(found.artifacts, run_dir, limits)
    values["run_result"] = _masked(values["run_result"])
    values["prepared_task"] = _masked(values["prepared_task"])
    values["driver_inputs"] = inputs
    ordered = {name: values[name] for name in _ORDER if name in values}
    update_section(path, "evaluation", ordered, durable=durable, files=files)
    return evaluation_of(ordered)


_ORDER = (
    "schema_version",
    "task_id",
    "attempt",
    "source_run_id",
    "source_evaluation_mode",
    "run_completed",
    "artifacts",
    "run_result",
    "prepared_task",
    "network_policy",
    "driver_inputs",
)


def _masked(members: Json) -> Json:
    from eventstore.redaction.redactor import redact, redact_text

    from .schema import FACTS

    masked = {name: value if name in FACTS else redact_keys({name: value})[name] for name, value in members.items()}
    diagnostics = section(masked, "artifacts").get("execution_diagnostics")
    if isinstance(diagnostics, str):
        masked["artifacts"] = {**masked["artifacts"], "execution_diagnostics": redact_text(diagnostics)}
    if isinstance(masked.get("issues"), list):
        masked["issues"] = redact(masked["issues"])
    return masked


def _attempt_of(path: Path) -> int | None:
    from eventstore.run.names import attempt_number

    return attempt_number(path.parent.name) if path.name == CHECKPOINT_FILE else None


def save_scheduler(
    path: Path,
    task_id: str,
    attempt: int,
    *,
    status: str,
    retries: int,
    stop_requested: bool = False,
    error: str = "",
    has_result: bool = True,
    durable: bool = True,
) -> None:
    """Save the terminal state of an attempt whose task still runs; its result must be in `result.json` already."""
    if status not in ("completed", "failed") or retries < 0 or (status == "failed" and stop_requested):
        raise UsageError(f"no terminal state: {status!r:.40}, {retries} retries, stop requested {stop_requested}")
    attempt_directory_name(attempt)
    from eventstore.redaction.redactor import redact_text

    values = (task_id, attempt, status, stop_requested, retries, redact_text(error))
    members: Json = {"schema_version": SCHEDULER_SCHEMA, **dict(zip(SCHEDULER_MEMBERS, values, strict=True))}
    members |= {"result_path": "result.json"} if has_result else {"value": None}
    update_section(path, "scheduler", members, durable=durable)


def transfer_journal(path: Path, *, durable: bool = False) -> artifacts.Journal:
    """What `artifacts.collect` tells its progress to: the `artifact_transfer` section, removed once it is complete."""

    def tell(manifest: Json) -> None:
        update_section(path, "artifact_transfer", None if manifest["complete"] else manifest, durable=durable)

    return tell


def materialise_checkpoint(
    source_run: Path,
    source: Path,
    target_run: Path,
    target: Path,
    task_id: str,
    attempt: int,
    limits: ArtifactLimits | None = None,
    *,
    link: bool = True,
    durable: bool = True,
) -> Evaluation:
    """Bring an attempt's evaluation checkpoint and artifacts into another run, so that it needs its source no more.

    The attempt's number is kept, the reference to the artifacts follows. Raises as `validate_checkpoint` does, and
    RefusedError for the older schema, which holds nothing that could be scored again.
    """
    evaluation = validate_checkpoint(source_run, source, task_id, attempt, limits)
    if evaluation.is_older:
        raise RefusedError(f"{source}: is of an older schema without classified snapshots: the agent must run", source)
    folder = (target.parent / ARTIFACTS_NAME).relative_to(target_run).as_posix()
    moved = artifacts.materialise(
        evaluation.artifacts, source_run, target_run, folder, limits, link=link, durable=durable
    )
    members = {name: getattr(evaluation, name) for name in _ORDER}
    members |= {"artifacts": moved, "run_result": evaluation.snapshot("run_result")}
    members["prepared_task"] = evaluation.snapshot("prepared_task")
    return save_evaluation(target_run, target, members, limits, durable=durable)
