"""Reading `checkpoint.json`: its sections, tolerantly, with snapshots left unparsed until they are asked for.

Part of `eventstore.results.checkpoint_store`, which checks and writes them.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from eventstore.errors import DamagedError, InputError, MalformedLineError
from eventstore.format.codec import dump_compact, parse_object
from eventstore.format.events import Json
from eventstore.run.json_files import pick_members, read_bytes
from eventstore.run.names import CHECKPOINT_SCHEMA

EVALUATION_SCHEMA = "agentcompass.evaluation_checkpoint.v4"
OLDER_EVALUATION_SCHEMA = "agentcompass.evaluation_checkpoint.v3"
MAX_BYTES = 32 * 1024 * 1024
SCHEDULER_MEMBERS = ("task_id", "attempt_index", "status", "stop_requested", "retries", "error")


class Evaluation(Struct, frozen=True, kw_only=True):
    """What is needed to score an attempt again without its agent. `run_result` and `prepared_task` stay bytes until
    asked for: both are absent in the older schema (`is_older`)."""

    schema_version: Any = None
    task_id: Any = None
    category: Any = None
    attempt: Any = None
    source_run_id: Any = None
    source_evaluation_mode: Any = None
    run_completed: Any = None
    artifacts: Any = None
    network_policy: Any = None
    driver_inputs: Any = None
    run_result: Raw | UnsetType = UNSET
    prepared_task: Raw | UnsetType = UNSET

    @property
    def is_older(self) -> bool:
        return bool(self.schema_version == OLDER_EVALUATION_SCHEMA)

    def snapshot(self, name: str) -> Json | None:
        """Return `run_result` or `prepared_task` as an object, parsed now; None where it is absent or no object."""
        raw = getattr(self, name)
        return None if raw is UNSET else _object(raw)

    def part(self, name: str, *members: str) -> Json | None:
        """As `snapshot`, but only the named members are built: a trajectory is passed over."""
        raw = getattr(self, name)
        try:
            return None if raw is UNSET else pick_members(bytes(raw), members)
        except MalformedLineError:
            return None


class Scheduler(Struct, frozen=True, kw_only=True):
    """The terminal state of a logical attempt, kept until the task's result is durable.

    `has_value`: there is a result (in `result.json`, or inline). `older`: its failure may not be classified.
    """

    task_id: str
    attempt: int
    status: str
    stop_requested: bool
    retries: int
    error: str
    has_value: bool
    older: bool


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint file as it stands. `problem` is about the file, `problems` about single sections (by name)."""

    path: Path
    exists: bool = True
    problem: str | None = None
    problems: dict[str, str] = {}
    evaluation: Evaluation | None = None
    scheduler: Scheduler | None = None
    artifact_transfer: Json | None = None


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a file; whatever is wrong becomes words. No artifact is looked at."""
    try:
        sections = read_sections(path)
    except FileNotFoundError:
        return Checkpoint(path=path, exists=False)
    except (InputError, DamagedError) as error:
        return Checkpoint(path=path, problem=error.message.removeprefix(f"{path}: "))
    problems: dict[str, str] = {}
    transfer = sections.get("artifact_transfer")
    return Checkpoint(
        path=path,
        evaluation=_evaluation(sections.get("evaluation"), problems),
        scheduler=_scheduler(sections.get("scheduler"), problems),
        artifact_transfer=None if transfer is None else _object(transfer),
        problems=problems,
    )


def read_sections(path: Path) -> dict[str, Raw]:
    """Return the members of the container, unparsed. Raises FileNotFoundError, InputError, DamagedError."""
    content = read_bytes(path, MAX_BYTES)
    try:
        sections = msgspec.json.decode(content, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            parsed = parse_object(content)
        except MalformedLineError as error:
            raise DamagedError(f"{path}: is {error}".replace("of the line", "of the file"), path) from None
        sections = {name: Raw(dump_compact(value)) for name, value in parsed.items()}
    schema = _value(sections.get("schema_version"))
    if schema != CHECKPOINT_SCHEMA:
        raise DamagedError(f"{path}: has schema {schema!r:.80}, and {CHECKPOINT_SCHEMA} is read here", path)
    return sections


def _value(raw: Raw | None) -> Any:
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):  # NaN, say
        return bytes(raw or b"").decode("utf-8", "replace")


def _object(raw: Raw) -> Json | None:
    try:
        return parse_object(bytes(raw))
    except MalformedLineError:
        return None


def _evaluation(raw: Raw | None, problems: dict[str, str]) -> Evaluation | None:
    if raw is None:
        return None
    try:
        found = msgspec.json.decode(raw, type=Evaluation)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        members = _object(raw)
        if members is None:
            problems["evaluation"] = "is no object"
            return None
        found = evaluation_of(members)
    if found.schema_version not in (EVALUATION_SCHEMA, OLDER_EVALUATION_SCHEMA):
        problems["evaluation"] = f"has schema {found.schema_version!r:.80}"
        return None
    return found


def evaluation_of(members: Json) -> Evaluation:
    fields = {name: members[name] for name in Evaluation.__struct_fields__ if name in members}
    for name in ("run_result", "prepared_task"):
        if name in fields:
            fields[name] = Raw(dump_compact(fields[name]))
    return Evaluation(**fields)


def _scheduler(raw: Raw | None, problems: dict[str, str]) -> Scheduler | None:
    members = None if raw is None else _object(raw)
    if members is None:
        if raw is not None and bytes(raw).strip() != b"null":
            problems["scheduler"] = "is no object"
        return None
    values = [members.get(name) for name in SCHEDULER_MEMBERS]
    task_id, attempt, status, stop_requested, retries, error = values
    kinds = (str, int, str, bool, int, str)
    if not all(type(value) is kind for value, kind in zip(values, kinds, strict=True)):
        problems["scheduler"] = "lacks what a terminal attempt has"
        return None
    return Scheduler(
        task_id=task_id,  # type: ignore[arg-type]
        attempt=attempt,  # type: ignore[arg-type]
        status=status,  # type: ignore[arg-type]
        stop_requested=stop_requested,  # type: ignore[arg-type]
        retries=retries,  # type: ignore[arg-type]
        error=error,  # type: ignore[arg-type]
        has_value=members.get("result_path") is not None or members.get("value") is not None,
        older=members.get("schema_version") is None,
    )
