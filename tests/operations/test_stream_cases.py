"""Small streams of which every command must say the same: names and values in them are invented."""

import shutil
from pathlib import Path

import pytest

from tests.tools.commands import Command

CASES = Path(__file__).parents[1] / "data" / "streams"


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A copy of all cases, to change."""
    return Path(shutil.copytree(CASES, tmp_path / "streams"))


def test_a_task_whose_id_is_empty_is_counted_once_by_everybody(case: Path, command: Command) -> None:
    """Two tasks finished in show, replay, SQL and diagnose; verify says that one has no id."""
    run = case / "count-with-empty-id" / "e"
    assert command("show", run, "--json") == 0
    assert command.document["finished_tasks"] == 2
    assert command("diagnose", run, "--json") == 1
    assert command.document["counts"]["finished_tasks"] == 2
    assert command.document["causes"][0]["evidence"][0]["text"].startswith("no_task_id")
    assert command("verify", run, "--json") == 1
    assert "no_task_id" in {finding["code"] for finding in command.document["findings"]}


def test_rows_of_tasks_are_as_many_as_were_finished(case: Path) -> None:
    """An empty id is an id: the task has its row."""
    from eventstore.history.sql.access import CatalogChoice, open_history

    connection = open_history([case / "count-with-empty-id"], catalog=CatalogChoice(off=True))
    try:
        found = connection.execute("SELECT count(*), sum(finishes), min(task_id) FROM tasks").fetchone()
    finally:
        connection.close()
    assert found == (2, 2, "")


@pytest.mark.parametrize(("name", "run"), [("cr-line-endings", "cr"), ("empty-stream-completed", "es")])
def test_a_completed_run_without_a_readable_record_is_an_error(
    name: str, run: str, case: Path, command: Command
) -> None:
    """verify, diagnose and replay say so, none of them claims an event, and nothing is overwritten."""
    path = case / name / run
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    for words in (("verify",), ("diagnose",), ("replay",)):
        assert command(*words, path) == 1
        assert "has its terminal event" not in command.out
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.name in before} == before


def test_two_runs_in_one_stream_are_named_by_diagnose(case: Path, command: Command) -> None:
    """What verify calls errors is a cause, and the exit code is that of something found."""
    path = case / "two-runs-interleaved" / "20261129_143950"
    assert command("diagnose", path, "--json") == 1
    assert command.document["causes"]
    assert command("verify", path) == 1
