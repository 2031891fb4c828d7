"""Evaluation checkpoints and the manifests of artifacts (specification, "Evaluation Checkpoints").

Pure: `CheckpointFacts` are what a reader found; whether files are what a manifest says, a reader must see.
"""

from typing import Any

from msgspec import UNSET, Struct

from eventstore.format.events import Json
from eventstore.format.values import shorten

from .findings import Notes

EVALUATION_SCHEMA = "agentcompass.evaluation_checkpoint.v4"
OLD_EVALUATION_SCHEMA = "agentcompass.evaluation_checkpoint.v3"
EVALUATION_MODES = ("fresh", "reuse", "none")


class CheckpointFacts(Struct, frozen=True):
    """One `checkpoint.json`. `evaluation` holds the identity's members only; None where there is no such section."""

    path: str
    task_id: str | None
    attempt: int
    problem: str | None = None
    evaluation: Json | None = None
    names: Json = {}
    """Task ids that stand deeper in the evaluation, by what they are of."""


def check_checkpoint(notes: Notes, facts: CheckpointFacts, run_id: str | None, *, reuses: bool) -> None:
    """The rules about one checkpoint. `reuses`: attempts of another run may have been copied in."""
    about: Any = {"file": facts.path, "task_id": facts.task_id, "attempt": facts.attempt}
    if facts.problem is not None:
        notes.add("checkpoint_file", facts.problem, **about)
        return
    evaluation = facts.evaluation
    if evaluation is None:
        return
    schema = evaluation.get("schema_version")
    if schema == OLD_EVALUATION_SCHEMA:
        notes.add("checkpoint_old_schema", f"evaluation.schema_version is {_short(schema)}", **about)
    elif schema != EVALUATION_SCHEMA:
        notes.add("checkpoint_file", f"evaluation.schema_version is {_short(schema)}", **about)
    _check_identity(notes, facts, evaluation, run_id, reuses, about)
    if evaluation.get("source_evaluation_mode") not in EVALUATION_MODES:
        words = f"source_evaluation_mode is {_short(evaluation.get('source_evaluation_mode'))}"
        notes.add("checkpoint_mode", words, **about)
    if evaluation.get("run_completed") is not True:
        notes.add("checkpoint_mode", f"run_completed is {_short(evaluation.get('run_completed'))}", **about)


def _check_identity(
    notes: Notes, facts: CheckpointFacts, evaluation: Json, run_id: str | None, reuses: bool, about: Any
) -> None:
    for name, expected in (("task_id", facts.task_id), ("attempt", facts.attempt)):
        if expected is not None and evaluation.get(name) != expected:
            words = f"evaluation.{name} is {_short(evaluation.get(name))}, its place says {_short(expected)}"
            notes.add("checkpoint_identity", words, **about)
    for name, task_id in facts.names.items():
        if facts.task_id is not None and task_id != facts.task_id:
            words = f"evaluation.{name}.task_id is {_short(task_id)}, its place says {_short(facts.task_id)}"
            notes.add("checkpoint_identity", words, **about)
    source = evaluation.get("source_run_id")
    if run_id is not None and source != run_id and not reuses:
        words = f"source_run_id is {_short(source)}, the run is {_short(run_id)} and reuses nothing"
        notes.add("checkpoint_identity", words, **about)


def check_answer(notes: Notes, stored: Any, said: Any, file: str, about: Any) -> None:
    """The agent's answer stands in the result and in the checkpoint; `said` is unset where it doesn't."""
    if said is not UNSET and stored != said:
        words = f"final_answer is {_short(stored)}, the checkpoint says {_short(said)}"
        notes.add("answer_differs", words, file=file, **about)


def check_manifest(notes: Notes, manifest: Any, directory: str, about: Any) -> bool:
    """The rules about a manifest alone; whether its files can be compared. `directory` is where they must stand."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("entries"), list):
        notes.add("artifact_manifest", "the manifest has no list of entries", **about)
        return False
    if manifest.get("directory") != directory:
        words = f"artifacts.directory is {_short(manifest.get('directory'))}, they stand in {_short(directory)}"
        notes.add("artifact_directory", words, **about)
        return False
    if manifest.get("complete") is False:
        notes.add("artifacts_incomplete", "collecting the artifacts was not completed", **about)
        return False
    return True


def _short(value: Any) -> str:
    return shorten(repr(value), 160)
