"""Layout v2 under `verify`: tasks stand in details/ without a state, and no result has a checkpoint of its own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore.operations.verify.verify import verify_run
from eventstore.run.directory import RunDir

STATES = ("running", "normal", "error", "fatal")
OLD = {"unsealed": 1, "run_info_old_schema": 1}


def edit(path: Path, **members: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


def to_layout_v2(run: Path, *, checkpoints: int = 0) -> list[Path]:
    """Move every task of a run to where layout v2 has it, and return their folders; some checkpoints may stay."""
    edit(run / "run_info.json", schema_version="agentcompass.run_info.v2")
    details = run / "details"
    tasks = []
    for folder in sorted(details.glob("*/*")):
        task = folder.rename(details / folder.name)
        edit(task / "task.json", schema_version="agentcompass.task.v2")
        tasks.append(task)
    for checkpoint in sorted(details.glob("*/*/checkpoint.json"))[checkpoints:]:
        checkpoint.unlink()
    for state in STATES:
        if (details / state).exists():
            (details / state).rmdir()
    return tasks


def counts(run: Path) -> dict[str, int]:
    return dict(verify_run(RunDir(run, run.name)).counts)


@pytest.mark.parametrize("name", ["r_ok", "r_warn", "r_evalerr", "r_retry"])
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_whole_run_is_as_sound_as_in_todays_layout(
    name: str, checkpoints: int, run_dir: Callable[[str], Path]
) -> None:
    """Neither the state that no folder tells nor a checkpoint that others have is missed."""
    run = run_dir(name)
    tasks = to_layout_v2(run, checkpoints=checkpoints)
    moved = {"artifact_directory": checkpoints} if checkpoints else {}  # it names the folder that it was made in
    assert tasks and counts(run) == OLD | moved


def lose_result(task: Path) -> None:
    (task / "attempt-1" / "result.json").unlink()


def change_id(task: Path) -> None:
    edit(task / "task.json", task_id="another")


BROKEN: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a result is gone": ("result_missing", lose_result),
    "a result is cut off": (
        "result_file",
        lambda task: (task / "attempt-1" / "result.json").write_bytes(b'{"status":'),
    ),
    "another task's folder": ("task_directory", change_id),
    "no plan of its attempts": ("attempt_plan_differs", lambda task: edit(task / "task.json", attempt_plan={"k": 9})),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_found_there_too(what: str, run_dir: Callable[[str], Path]) -> None:
    """The rules of results look into these folders as they do into the others, and name the file below them."""
    code, spoil = BROKEN[what]
    run = run_dir("r_ok")
    tasks = to_layout_v2(run)
    spoil(tasks[0])
    report = verify_run(RunDir(run, run.name))
    found = [finding for finding in report.findings if finding.code == code]
    assert len(found) == 1 and Path(run, found[0].file or "").is_relative_to(tasks[0])


def test_a_task_that_stands_in_both_layouts_is_named_once(run_dir: Callable[[str], Path]) -> None:
    """One id, two places."""
    run = run_dir("r_ok")
    first = next(iter(sorted((run / "details/normal").iterdir())))
    shutil.copytree(first, run / "details" / first.name)
    assert counts(run)["task_in_two_states"] == 1
