"""Links below a folder of runs: every real directory is counted once, and ends the search soon."""

from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.run.directory import find_runs
from tests.tools.commands import Command

RunCopy = Callable[[str], Path]


@pytest.mark.parametrize("name", ["latest", "a-first"])
def test_a_link_to_a_run_counts_it_once(name: str, run_dir: RunCopy, command: Command) -> None:
    """Whatever its name sorts before: the run has its own name, and the link is named on stderr."""
    run = run_dir("r_ok")
    root = run.parent
    (root / name).symlink_to(run.name)
    assert command("query", "SELECT run_key FROM runs", root, "--json") == 0
    assert command.document == [{"run_key": run.name}]
    assert command("runs", root, "--json") == 0
    assert [row["run_key"] for row in command.document["runs"]] == [run.name]
    assert name in command.err
    command("verify", root, "--json")
    assert command.document["runs"] == 1
    assert command("watch", root, "--once", "--json") == 0 and len(command.out.splitlines()) == 1
    assert command("index", root, "--json") == 0 and command.document["runs"] == 1


def test_folders_full_of_links_to_each_other_are_walked_once(tmp_path: Path, run_dir: RunCopy) -> None:
    """26 folders with two links each to the next: 27 folders, not 2 to the 26th."""
    run = run_dir("r_ok")
    for number in range(26):
        folder = tmp_path / "dag" / f"l{number}"
        folder.mkdir(parents=True)
        for name in "ab":
            (folder / name).symlink_to(f"../l{number + 1}")
    (tmp_path / "dag" / "l26").mkdir()
    (tmp_path / "dag" / "l26" / "outside").symlink_to(run)
    (tmp_path / "dag" / "l26" / "up").symlink_to("..")
    told: list[tuple[str, str]] = []
    found = list(find_runs(tmp_path / "dag", lambda path, words: told.append((path, words))))
    assert [one.run_key for one in found] == ["l26/outside"]
    assert len(told) == 53 and all("is a link to" in words for _, words in told)
