"""`index` and `export`: the history as files for other engines comes back as it was; only what changed is written."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventstore.errors import OutputError
from eventstore.history.sql.access import CatalogChoice, describe_views, open_history
from eventstore.history.sql.export import export_parquet
from tests.tools.recorded import ROOT, RUNS

PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catalogs of tests don't land in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cli.main import main; main()", *map(str, words)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)


def read_back(folder: Path, view: str, columns: list[str]) -> list[str]:
    import duckdb

    listed = ", ".join(f'"{name}"' for name in columns)
    rows = duckdb.execute(
        f"SELECT {listed} FROM read_parquet('{folder}/{view}/**/*.parquet', hive_partitioning=true,"
        " hive_types_autocast=false)"
    ).fetchall()
    return sorted(map(repr, rows))


def in_history(root: Path, view: str, columns: list[str]) -> list[str]:
    connection = open_history([root], catalog=CatalogChoice())
    listed = ", ".join(f'CAST("{name}" AS VARCHAR)' if name in _JSON else f'"{name}"' for name in columns)
    rows = connection.execute(f"SELECT {listed} FROM {view}").fetchall()
    connection.close()
    return sorted(map(repr, rows))


_JSON = ("payload", "request")


def test_every_view_comes_back_as_it_was(tmp_path: Path) -> None:
    """All rows, all columns, whatever engine reads the folder."""
    done = export_parquet([ROOT], tmp_path / "out", choice=CatalogChoice())
    assert (done.partitions, done.written) == (1, 1)
    for view, columns in describe_views().items():
        assert read_back(tmp_path / "out", view, columns) == in_history(ROOT, view, columns), view


def test_only_partitions_that_changed_are_written_again(tmp_path: Path) -> None:
    """By benchmark and month; one that is gone is removed, and nothing half is ever seen."""
    root, out = tmp_path / "runs", tmp_path / "out"
    shutil.copytree(ROOT / RUNS["r_ok"], root / "a")
    line: dict[str, Any] = {"run_id": "b", "event": "run_started", "timestamp": 1_700_000_000.0}
    line["payload"] = {"benchmark": '../evil/"x"', "model": "m"}
    (root / "b").mkdir()
    (root / "b" / "progress.jsonl").write_text(json.dumps(line) + "\n")
    first = export_parquet([root], out, choice=CatalogChoice())
    assert (first.written, first.unchanged, first.removed) == (2, 0, 0)
    assert (out / "events" / "benchmark=..%2Fevil%2F%22x%22" / "month=2023-11" / "data.parquet").exists()
    again = export_parquet([root], out, choice=CatalogChoice())
    assert (again.written, again.unchanged, again.removed) == (0, 2, 0)
    with (root / "b" / "progress.jsonl").open("a") as file:
        file.write(json.dumps({**line, "event": "tasks_loaded"}) + "\n")
    grown = export_parquet([root], out, choice=CatalogChoice())
    assert (grown.written, grown.unchanged) == (1, 1)
    shutil.rmtree(root / "b")
    gone = export_parquet([root], out, choice=CatalogChoice())
    assert (gone.unchanged, gone.removed) == (1, 1)
    assert read_back(out, "events", ["run_key"]) == [repr(("a",))] * 65
    assert not [path for path in out.rglob("*") if path.name.endswith(".part")]


def test_a_manifest_that_somebody_wrote_removes_nothing_elsewhere(tmp_path: Path) -> None:
    """It is a file in a folder, and no more trusted than that."""
    out = tmp_path / "out"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data.parquet").touch()
    out.mkdir()
    (out / "manifest.json").write_text('{"partitions": {"../../precious": "x", "benchmark=/month=/../../../..": "y"}}')
    export_parquet([ROOT / "k3"], out, choice=CatalogChoice())
    assert (tmp_path / "precious" / "data.parquet").exists()


def test_a_folder_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    """In words."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        export_parquet([ROOT / "k3"], tmp_path / "file" / "out", choice=CatalogChoice())


def test_the_export_command_tells_what_it_did(tmp_path: Path) -> None:
    """And never writes into a run."""
    done = run("export", ROOT, "--to", "parquet", tmp_path / "out", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["partitions_written"] == 1, done.stderr
    assert run("export", ROOT, "--to", "parquet").returncode == 2
    shutil.copytree(ROOT / RUNS["r_ok"], tmp_path / "run")
    inside = run("export", ROOT, "--to", "parquet", tmp_path / "run" / "out")
    assert inside.returncode == 2 and not (tmp_path / "run" / "out").exists()


def test_the_index_command_tells_what_it_did(tmp_path: Path) -> None:
    """Runs, events, bytes, seconds; where the catalog is; nothing to read the second time."""
    lines = sum(path.read_bytes().count(b"\n") for path in ROOT.glob("*/*/progress.jsonl"))
    first = json.loads(run("index", ROOT, "--json", "--catalog", tmp_path / "c.duckdb").stdout)
    assert (first["runs"], first["events"], first["runs_read"]) == (len(RUNS), lines, len(RUNS))
    assert first["catalog"] == str(tmp_path / "c.duckdb") and (tmp_path / "c.duckdb").exists()
    second = json.loads(run("index", ROOT, "--json", "--catalog", tmp_path / "c.duckdb").stdout)
    assert (second["events"], second["runs_read"], second["bytes_read"]) == (lines, 0, 0)
    assert run("index", tmp_path / "nowhere").returncode == 3
    assert "0 runs read" in run("index", ROOT, "--catalog", tmp_path / "c.duckdb").stderr


def test_the_analyses_of_the_notebook_page_run_on_the_recorded_runs() -> None:
    """docs/notebook.md: its SQL answers, with rows, on the connection that it tells of."""
    import re

    from eventstore.history import connect
    from eventstore.history.sql import questions

    text = (PROJECT / "docs" / "notebook.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    history = connect(ROOT)
    rows = 0
    for block in blocks:
        found = re.search(r'sql = """(.*?)"""', block, flags=re.DOTALL)
        sql = found[1] if found else questions.question("success-rate").sql
        given = {"run": RUNS["r_resumed"]} if "$run" in sql else {"metric": "correct"} if "$metric" in sql else None
        answer = history.execute(sql, given).fetchall()
        rows += bool(answer)
        compile(block, "notebook", "exec")
    assert rows == len(blocks) == 5
    with pytest.raises(Exception, match=r"read-only|disabled|denied|not allowed|Cannot"):
        history.execute("INSERT INTO store.main.runs (run_key) VALUES ('x')")
    history.close()
