"""Paths that a user names for output: no command writes over a run, or over a file that is not its own."""

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import click
import duckdb
import pytest

from cli.main import COMMANDS
from tests.tools.commands import Command

RunCopy = Callable[[str], Path]
WRITES: dict[tuple[str, str], Callable[[Path, Path], list]] = {
    ("replay", "--out"): lambda run, to: ["replay", run, "--out", to],
    ("query", "--output"): lambda run, to: ["query", "SELECT 1 AS a", run, "-o", to, "--format", "csv"],
    ("query", "--catalog"): lambda run, to: ["query", "SELECT 1 AS a", run, "--catalog", to],
    ("index", "--catalog"): lambda run, to: ["index", run, "--catalog", to],
    ("export", "--catalog"): lambda run, to: ["export", run, "--to", "parquet", run.parent / "o", "--catalog", to],
    ("verify", "--write-baseline"): lambda run, to: ["verify", run, "--write-baseline", to],
}
READS = {
    ("diagnose", "--history"),
    ("query", "--file"),
    ("reuse", "--root"),
    ("verify", "--baseline"),
}


def path_options() -> set[tuple[str, str]]:
    """Every option of every command that takes a path, subcommands included."""
    found = set()
    for name in COMMANDS:
        command = importlib.import_module(f"cli.{name}").command
        parts = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
        for option in (option for part in parts for option in part.params):
            if isinstance(option, click.Option) and isinstance(option.type, click.Path):
                found.add((name, option.opts[0]))
    return found


def content_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_option_with_a_path_is_known_to_read_or_to_write() -> None:
    """A new one has to be put into one of the tables above; all that write are tried below."""
    unknown = path_options() - WRITES.keys() - READS
    assert not unknown, f"does it read or write? {unknown}"
    assert WRITES.keys() <= path_options()


@pytest.mark.parametrize("option", WRITES, ids="".join)
@pytest.mark.parametrize("name", ["run_info.json", "progress.jsonl", "run.log", "new", "details/new", ""])
def test_nothing_is_written_into_a_run(option, name: str, run_dir: RunCopy, command: Command, tmp_path: Path) -> None:
    """Neither over one of its files nor beside them, nor through a link."""
    run, other = run_dir("r_ok"), run_dir("r_ok")
    link = tmp_path / "link"
    link.symlink_to(other / name)
    before = content_of(other)
    for target in (other / name, link):
        assert command(*WRITES[option](run, target)) == 2, command.err
        assert "run" in command.err and "Traceback" not in command.err
        assert content_of(other) == before


@pytest.mark.parametrize("option", WRITES, ids="".join)
def test_a_file_that_is_not_of_its_kind_stays(option, run_dir: RunCopy, command: Command, tmp_path: Path) -> None:
    """A text, a JSON file, a database of the user's own."""
    run = run_dir("r_ok")
    (tmp_path / "text").write_text("dear diary\n")
    (tmp_path / "json").write_text('{"mine": 1}\n')
    with duckdb.connect(str(tmp_path / "own.duckdb")) as own:
        own.execute("CREATE TABLE mine AS SELECT 42 AS answer")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "progress.json").write_text('{"run_id": "another"}')
    targets = (
        [folder] if option == ("replay", "--out") else [tmp_path / name for name in ("text", "json", "own.duckdb")]
    )
    for target in targets:
        before = content_of(target) if target.is_dir() else target.read_bytes()
        assert command(*WRITES[option](run, target)) == 2, command.err
        assert "there already" in command.err or "is not of run" in command.err
        assert (content_of(target) if target.is_dir() else target.read_bytes()) == before


@pytest.mark.parametrize("option", WRITES, ids="".join)
def test_its_own_kind_is_replaced(option, run_dir: RunCopy, command: Command, tmp_path: Path) -> None:
    """Again and again, but for the answer of a query, which needs --overwrite."""
    run = run_dir("p_load")
    first = command(*WRITES[option](run, tmp_path / "to"))
    assert first in (0, 1), command.err
    again = command(*WRITES[option](run, tmp_path / "to"))
    if option == ("query", "--output"):
        assert again == 2 and "--overwrite" in command.err
        again = command(*WRITES[option](run, tmp_path / "to"), "--overwrite")
    assert again == first, command.err


def test_an_answer_goes_to_a_device_or_pipe_as_ever(run_dir: RunCopy, command: Command) -> None:
    assert command("query", "SELECT 1 AS a", run_dir("r_ok"), "-o", "/dev/null", "--format", "csv") == 0


def test_export_replaces_what_an_export_wrote(run_dir: RunCopy, command: Command, tmp_path: Path) -> None:
    """The manifest says which files those are; another file under such a name needs --overwrite."""
    run, out = run_dir("r_ok"), tmp_path / "out"
    call = ["export", run, "--to", "parquet", out]
    assert command(*call) == 0 and command(*call) == 0
    manifest = next(path for path in out.iterdir() if path.is_file())
    assert json.loads(manifest.read_text())["partitions"]
    manifest.unlink()
    before = content_of(out)
    assert command(*call) == 2 and "--overwrite" in command.err
    assert content_of(out) == before
    assert command(*call, "--overwrite") == 0
    shutil.rmtree(out)
    assert command("export", run, "--to", "parquet", run / "out") == 2
