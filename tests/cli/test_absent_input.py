"""What is not there is said to be not there: absent input is never an empty answer."""

import os
from pathlib import Path

import pytest

from tests.tools.commands import Command
from tests.tools.failures import Copy
from tests.tools.recorded import ROOT, RUNS

EMPTY = [
    ["runs", "PATH"],
    ["verify", "PATH"],
    ["watch", "PATH", "--once"],
    ["query", "SELECT count(*) FROM runs", "PATH", "--no-catalog"],
    ["query", "died-runs", "PATH", "--no-catalog"],
    ["index", "PATH", "--catalog", "CATALOG"],
    ["export", "PATH", "OUT", "--to", "parquet", "--catalog", "CATALOG"],
    ["reuse", "plan", "PATH", "--benchmark", "b", "--attempts", "1"],
    *([name, "PATH"] for name in ("show", "diagnose", "replay", "repair", "tail")),
    ["close", "PATH", "--status", "failed"],
    ["task", "PATH", "t"],
    ["diff", "PATH", "PATH"],
    ["reuse", "lineage", "PATH"],
]


@pytest.mark.parametrize("words", EMPTY, ids=lambda words: " ".join(words[:2]))
def test_a_folder_without_runs_is_exit_3_and_a_sentence(words: list[str], tmp_path: Path, command: Command) -> None:
    """Also where a folder below it is empty; nothing is printed that could be taken for an answer."""
    empty = tmp_path / "empty"
    (empty / "below").mkdir(parents=True)
    names = {"PATH": str(empty), "CATALOG": str(tmp_path / "c.duckdb"), "OUT": str(tmp_path / "out")}
    assert command(*(names.get(word, word) for word in words)) == 3
    assert str(empty) in command.err and command.out == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
def test_a_folder_that_cannot_be_entered_is_exit_3(tmp_path: Path, command: Command) -> None:
    """Its names can be listed, and nothing in it can be looked at."""
    closed = tmp_path / "closed"
    (closed / "r").mkdir(parents=True)
    closed.chmod(0o400)
    try:
        assert command("runs", closed) == 3 and "can't be entered" in command.err
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize("words", [["show"], ["replay"], ["diff"]])
def test_a_moment_beyond_the_end_is_refused(words: list[str], run_dir: Copy, command: Command) -> None:
    """The run has 65 events: the state after 66 is not the state after 65. A run without a stream has none."""
    run = run_dir("r_ok")
    [name] = words
    at = [f"{run}@66", run] if name == "diff" else [run, "--at-event", "66"]
    assert command(name, *at) == 2 and "beyond the end: the run has 65 events" in command.err
    at = [f"{run}@65", run] if name == "diff" else [run, "--at-event", "65"]
    assert command(name, *at) == 0
    (run / "progress.jsonl").unlink()
    at = [f"{run}@1", run] if name == "diff" else [run, "--at-event", "1"]
    assert command(name, *at) == 2 and "the run has 0 events" in command.err


def test_a_question_without_its_parameters_is_refused(command: Command) -> None:
    """Which ones it needs, and what they mean, is said; optional ones may be left out."""
    run = ROOT / RUNS["r_ok"]
    assert command("query", "compare-runs", run, "--no-catalog", "--param", "a=r_ok") == 2
    assert "can't be answered without --param b=… (run_key of the second)" in command.err
    assert command("query", "task-evidence", run, "--no-catalog") == 2 and "--param run=" in command.err
    assert command("query", "slowest-phases", run, "--no-catalog", "--json") == 0


def test_a_question_about_what_is_not_there_is_refused(command: Command) -> None:
    """A run, a task, an environment or a phase that the history doesn't have; the nearest names are shown."""
    run = ROOT / RUNS["r_ok"]
    asks = {
        "--param run=r_okk --param task=arith-001": ("task-evidence", "no run_key is 'r_okk'; did you mean r_ok?"),
        "--param run=r_ok --param task=arith-901": ("task-evidence", "no task_id is 'arith-901'; did you mean"),
        "--param phase=evaluat": ("slowest-phases", "no phase is 'evaluat'; did you mean evaluate"),
        "--param environment=moon": ("slowest-phases", "no environment is 'moon'"),
        "--param run=nowhere": ("tasks-at-moment", "no run_key is 'nowhere'"),
    }
    for options, (name, words) in asks.items():
        assert command("query", name, run, "--no-catalog", *options.split()) == 2, name
        assert words in command.err
    words_of = ["--param", "run=r_ok", "--param", "task=arith-001"]
    assert command("query", "task-evidence", run, "--no-catalog", *words_of) == 0
