"""Evaluation checkpoints: read without trust, checked before they are used, changed one section at a time."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore.errors import CompassError, DamagedError, OutputError, RefusedError, UsageError
from eventstore.results.artifacts import collect, read_specs, sandbox_root
from eventstore.results.checkpoint_store import (
    MAX_BYTES,
    materialise_checkpoint,
    read_checkpoint,
    save_evaluation,
    save_scheduler,
    transfer_journal,
    update_section,
    validate_checkpoint,
)
from eventstore.results.store import TaskStore
from tests.tools.dying import deaths

SECRET = "sk-abcdefghijklmnop0123456789"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def saved(run: Path, task_id: str = "t", attempt: int = 1, mode: str = "fresh", **changes: Any) -> Path:
    """A checkpoint with one artifact, saved for an attempt; its path."""
    folder = TaskStore(run, durable=False).attempt_dir(task_id, attempt)
    source = run.parent / f"sandbox-{attempt}"
    (source / "app").mkdir(parents=True, exist_ok=True)
    (source / "app" / "patch.diff").write_text(f"patch {attempt}")
    shutil.rmtree(folder / "artifacts", ignore_errors=True)
    specs = read_specs(["/app/patch.diff", "/logs/artifacts"])
    manifest = collect(run, folder, specs, sandbox_root(source), durable=False)
    members = {
        "task_id": task_id,
        "attempt": attempt,
        "source_run_id": "run",
        "source_evaluation_mode": mode,
        "artifacts": manifest,
        "run_result": {
            "task_id": task_id,
            "status": "completed",
            "final_answer": SECRET,
            "issues": [],
            "artifacts": {},
        },
        "prepared_task": {"task_id": task_id, "ground_truth": "7", "input": {"prompt": "?", "files": [], "media": []}},
        "network_policy": {"network_mode": "public", "allowed_hosts": []},
    }
    save_evaluation(run, folder / "checkpoint.json", members | changes, durable=False)
    return folder / "checkpoint.json"


def rewrite(path: Path, **changes: Any) -> None:
    """Change members of the stored evaluation behind our back; None takes one away."""
    stored = json.loads(path.read_text())
    members = stored["evaluation"] | changes
    stored["evaluation"] = {name: value for name, value in members.items() if value is not None}
    path.write_text(json.dumps(stored))


# --- reading


def test_every_recorded_checkpoint_is_read(runs_root: Path) -> None:
    """Evaluation and scheduler sections of real runs, with the identity that their place says."""
    paths = sorted(runs_root.rglob("details/*/*/attempt-*/checkpoint.json"))
    assert len(paths) > 200
    terminal = 0
    for path in paths:
        found = read_checkpoint(path)
        assert found.problem is None and not found.problems
        if found.evaluation is not None:
            assert f"attempt-{found.evaluation.attempt}" == path.parent.name and found.evaluation.run_completed is True
            assert found.evaluation.snapshot("run_result") == json.loads(path.read_text())["evaluation"]["run_result"]
        terminal += found.scheduler is not None
    assert terminal >= 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "JSON"),
        (b"[]", "array"),
        (b'{"schema_version": "other"}', "schema 'other'"),
        (b"{}", "schema None"),
        (b"\xff", "UTF-8"),
        (b'{"schema_version": "agentcompass.attempt_checkpoint.v1", "evaluation": {"sch', "JSON"),
    ],
)
def test_an_unreadable_checkpoint_is_a_problem_in_words(tmp_path: Path, content: bytes, words: str) -> None:
    """Never an exception."""
    path = tmp_path / "checkpoint.json"
    path.write_bytes(content)
    assert words in (read_checkpoint(path).problem or "")
    assert not read_checkpoint(tmp_path / "other.json").exists
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert read_checkpoint(path).problem == "is a symbolic link"


def test_odd_sections_are_told_one_by_one(tmp_path: Path) -> None:
    """A section that can't be used doesn't take the others with it."""
    path = tmp_path / "checkpoint.json"
    sections = {"evaluation": [1], "scheduler": {"task_id": "t"}, "artifact_transfer": {"complete": False}}
    path.write_text(json.dumps({"schema_version": "agentcompass.attempt_checkpoint.v1"} | sections))
    found = read_checkpoint(path)
    assert found.problem is None and set(found.problems) == {"evaluation", "scheduler"}
    assert found.artifact_transfer == {"complete": False}
    path.write_text(path.read_text().replace("[1]", '{"schema_version": "v9", "x": NaN}'))
    assert "v9" in read_checkpoint(path).problems["evaluation"]


def test_the_older_evaluation_is_readable_and_not_brought_over(run: Path, tmp_path: Path) -> None:
    """v3 has no classified snapshots: it is valid, and the agent must run again elsewhere."""
    path = saved(run)
    rewrite(path, schema_version="agentcompass.evaluation_checkpoint.v3", run_result=None, prepared_task=None)
    assert validate_checkpoint(run, path, "t", 1).is_older
    target = tmp_path / "target"
    with pytest.raises(RefusedError, match="older schema"):
        materialise_checkpoint(run, path, target, TaskStore(target).attempt_dir("t", 1) / "checkpoint.json", "t", 1)


# --- checking


def test_a_sound_checkpoint_is_accepted(run: Path) -> None:
    """Files, checksums, missing outputs and identity agree."""
    evaluation = validate_checkpoint(run, saved(run), "t", 1)
    assert [entry["status"] for entry in evaluation.artifacts["entries"]] == ["collected", "missing"]


REASONS: dict[str, Callable[[Path], object]] = {
    "another task or attempt": lambda path: rewrite(
        path, task_id="u", run_result={"task_id": "u", "issues": []}, prepared_task={"task_id": "u"}
    ),
    "attempt is no integer": lambda path: rewrite(path, attempt="1"),
    "not completed": lambda path: rewrite(path, run_completed=False),
    "evaluation mode": lambda path: rewrite(path, source_evaluation_mode="other"),
    "lacks the run's result": lambda path: rewrite(path, run_result=None),
    "fatal issue": lambda path: rewrite(
        path,
        run_result={"task_id": "t", "issues": [{"severity": "fatal", "phase": "run", "code": "c", "message": "m"}]},
    ),
    "not classified": lambda path: rewrite(path, run_result={"task_id": "t", "error": "boom", "issues": []}),
    "not classified ": lambda path: rewrite(path, run_result={"task_id": "t"}),
    "that of another task": lambda path: rewrite(path, run_result={"task_id": "u", "issues": []}),
    "prepared task is another": lambda path: rewrite(path, prepared_task={"task_id": "u"}),
    "no artifact manifest": lambda path: rewrite(path, artifacts=[]),
    "not those of the same attempt": lambda path: rewrite(path, artifacts={"directory": "details/running/x/a"}),
    "schema": lambda path: rewrite(path, schema_version="v9"),
    "no evaluation": lambda path: update_section(path, "evaluation", None),
    "not what was collected": lambda path: (path.parent / "artifacts/app/patch.diff").write_text("patch 2"),
    "is gone": lambda path: (path.parent / "artifacts/app/patch.diff").unlink(),
}


@pytest.mark.parametrize("words", REASONS)
def test_every_reason_not_to_use_a_checkpoint_has_its_words(run: Path, words: str) -> None:
    """Identity, completion, mode, snapshots, place, sizes and checksums are all checked."""
    path = saved(run)
    REASONS[words](path)
    with pytest.raises(CompassError, match=words.strip()):
        validate_checkpoint(run, path, "t", 1)


def test_an_input_that_changed_since_makes_a_checkpoint_unusable(run: Path, tmp_path: Path) -> None:
    """Scoring without an environment reads files of this host; their checksums are kept and compared."""
    image = tmp_path / "input.png"
    image.write_bytes(b"pixels")
    inputs = {"prompt": "?", "files": [{"path": "input.png"}], "media": [], "workspace": str(tmp_path)}
    path = saved(run, mode="none", prepared_task={"task_id": "t", "input": inputs})
    evaluation = validate_checkpoint(run, path, "t", 1)
    assert list(evaluation.driver_inputs) == [str(image)]
    image.write_bytes(b"pixelz")
    with pytest.raises(DamagedError, match="has changed"):
        validate_checkpoint(run, path, "t", 1)
    for odd in ("x", [7], [{"path": "a\0b"}], [{"path": 7}], [{"path": "\ud800"}], [{"path": "/x" * 5000}]):
        with pytest.raises(CompassError):
            saved(run, mode="none", prepared_task={"task_id": "t", "input": {"files": odd}})
    with pytest.raises(RefusedError, match="only an address"):
        saved(run, mode="none", prepared_task={"task_id": "t", "input": {"media": [{"url": "http://x"}]}})
    with pytest.raises(RefusedError, match="absolute workspace"):
        saved(run, mode="none", prepared_task={"task_id": "t", "input": {"files": [{"path": "x"}]}})


@pytest.mark.parametrize("beside", [{"data": "aGk="}, {"path": "input.png"}])
def test_an_address_beside_what_was_captured_is_no_reason_to_refuse(
    run: Path, tmp_path: Path, beside: dict[str, str]
) -> None:
    """Bytes in the input need no file; a file is fingerprinted, wherever it came from."""
    (tmp_path / "input.png").write_bytes(b"pixels")
    item = {"url": "http://x/input.png"} | beside
    inputs = {"prompt": "?", "files": [], "media": [item], "workspace": str(tmp_path)}
    path = saved(run, mode="none", prepared_task={"task_id": "t", "input": inputs})
    wanted = [str(tmp_path / "input.png")] if "path" in beside else []
    assert list(validate_checkpoint(run, path, "t", 1).driver_inputs) == wanted


# --- writing


def test_facts_stay_and_secrets_go(run: Path) -> None:
    """What scoring reads is what the agent wrote; keys and diagnostics lose their credentials."""
    result = {
        "task_id": "t",
        "final_answer": SECRET,
        "issues": [],
        "meta": {"api_key": SECRET},
        "artifacts": {"execution_diagnostics": f"Authorization: Bearer {SECRET}", "text": "token of appreciation"},
    }
    prepared = {"task_id": "t", "ground_truth": SECRET, "input": {"prompt": "?", "env": {"A": SECRET}}}
    stored = json.loads(saved(run, run_result=result, prepared_task=prepared).read_text())["evaluation"]
    assert stored["run_result"]["final_answer"] == SECRET and stored["prepared_task"]["ground_truth"] == SECRET
    assert stored["run_result"]["artifacts"]["text"] == "token of appreciation"
    stored["run_result"].pop("final_answer")
    stored["prepared_task"].pop("ground_truth")
    assert SECRET not in json.dumps(stored)


def test_a_section_is_replaced_and_the_others_keep_their_bytes(run: Path) -> None:
    """Numbers that Python would write differently stay as they are."""
    path = saved(run)
    odd = '{\n    "x": 1.50,\n    "n": 123456789012345678901234567890,\n    "i": NaN\n  }'
    path.write_text(path.read_text().replace("\n}\n", f',\n  "artifact_transfer": {odd}\n}}\n'))
    before = path.read_text()
    save_scheduler(path, "t", 1, status="completed", retries=2, error=f"token={SECRET}")
    found = read_checkpoint(path)
    assert found.scheduler is not None and (found.scheduler.retries, found.scheduler.has_value) == (2, True)
    assert SECRET not in found.scheduler.error
    update_section(path, "scheduler", None)
    assert json.loads(path.read_text().replace("NaN", "0")) == json.loads(before.replace("NaN", "0"))
    assert "123456789012345678901234567890" in path.read_text() and "NaN" in path.read_text()


def test_a_checkpoint_beyond_32_mib_is_refused_and_the_old_one_stays(run: Path) -> None:
    """The limit is that of the specification, and it holds for reading, too."""
    path = saved(run)
    before = path.read_bytes()
    with pytest.raises(OutputError, match=str(MAX_BYTES)):
        update_section(path, "artifact_transfer", {"text": "x" * MAX_BYTES})
    assert path.read_bytes() == before
    path.write_bytes(before + b" " * MAX_BYTES)
    assert "limit" in (read_checkpoint(path).problem or "")


def test_a_crash_while_a_section_is_replaced_leaves_the_old_file_or_the_new(run: Path) -> None:
    """Never half of one, and the other sections are there in either."""
    path = saved(run)
    before = path.read_bytes()
    seen = set()
    for _ in deaths(
        lambda: update_section(path, "artifact_transfer", {"complete": False}), lambda: path.write_bytes(before)
    ):
        found = read_checkpoint(path)
        assert found.problem is None and found.evaluation is not None
        seen.add(found.artifact_transfer is not None)
    assert seen == {True, False}


def test_a_transfer_in_progress_is_told_and_removed_when_it_is_complete(run: Path, tmp_path: Path) -> None:
    """The journal of collecting stands in the checkpoint until there is a manifest."""
    folder = TaskStore(run).attempt_dir("t", 1)
    (tmp_path / "box").mkdir()
    journal = transfer_journal(folder / "checkpoint.json")
    seen = []

    def tell(manifest: dict[str, Any]) -> None:
        journal(manifest)
        seen.append(read_checkpoint(folder / "checkpoint.json").artifact_transfer is not None)

    collect(run, folder, read_specs(["/a"]), sandbox_root(tmp_path / "box"), journal=tell)
    assert seen == [True, True, False]


def test_a_checkpoint_brought_over_stands_alone(run: Path, tmp_path: Path) -> None:
    """Attempt number kept, references updated, the source no longer needed."""
    path = saved(run, attempt=2)
    target = tmp_path / "target"
    there = TaskStore(target).attempt_dir("t", 2) / "checkpoint.json"
    materialise_checkpoint(run, path, target, there, "t", 2)
    shutil.rmtree(run)
    evaluation = validate_checkpoint(target, there, "t", 2)
    assert evaluation.attempt == 2 and evaluation.source_run_id == "run"
    assert evaluation.artifacts["directory"].startswith("details/running/t--")


def test_what_no_terminal_state_can_be_is_refused(run: Path) -> None:
    """A failed attempt can't ask the strategy to stop; an attempt has a number."""
    path = saved(run)
    for changes in ({"status": "running"}, {"retries": -1}, {"status": "failed", "stop_requested": True}):
        with pytest.raises(UsageError):
            save_scheduler(path, "t", 1, **({"status": "completed", "retries": 0} | changes))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="attempt"):
        members = json.loads(path.read_text())["evaluation"]
        save_evaluation(run, path, members | {"attempt": 2})
