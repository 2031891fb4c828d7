"""Reports that other programs show: SARIF, Markdown and CSV carry hostile text as text, and nothing else."""

import csv
import io
import json
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from cli import markdown, rows
from tests.tools.commands import Command
from tests.tools.recorded import ROOT, RUNS

HOSTILE = [
    "a|b",
    "a\\|b",
    "a\\\\|b",
    "![x](http://evil.example/p.png)",
    "[click](https://evil.example)",
    "<img src=x onerror=alert(1)>",
    "&lt;script&gt;",
    "http://evil.example/a https://evil.example www.evil.example WWW.evil.example ftp://evil.example",
    "`code` ``more``",
    "*bold* _em_ __strong__ ~~gone~~ $x$",
    "@somebody #12",
    "one\ntwo\r| three |",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_stays_text(text: str) -> None:
    """No cell ends early, and nothing in it becomes a link, an image or a mention: what could is a reference."""
    cell = markdown.cell(text)
    assert not set(cell.replace("&#", "")) & set("\\|<>`*~[]!@$\n\r")
    assert "http://" not in cell and "https://" not in cell and "www." not in cell.lower() and "ftp://" not in cell


def test_plain_words_look_as_they_are() -> None:
    assert markdown.cell("toy_arith/r_ok: 12.5 (done)") == "toy_arith/r_ok: 12.5 (done)"


def test_a_code_span_holds_any_backticks() -> None:
    assert markdown.code("a ``` b") == "```` a ``` b ````"
    assert markdown.code(" ") == ""


def test_a_query_as_markdown_keeps_its_columns(command: Command) -> None:
    """A value with a bar and a link is one cell of one row."""
    sql = "SELECT 'a\\|b' AS \"x|y\", '[l](http://evil.example)' AS z"
    assert command("query", sql, ROOT / RUNS["r_ok"], "--no-catalog", "--format", "markdown") == 0
    assert [line.count("|") for line in command.out.splitlines()] == [3, 3, 3]
    assert "](" not in command.out and "http://" not in command.out


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1"]
PLAIN = ["-1.5", "+3", "1e5", "-2e-7", "-.5", "text", "a=b", ""]


def test_texts_that_are_formulas_are_shown_and_numbers_stay() -> None:
    """A text that a spreadsheet would run has an apostrophe before it; -1.5 is a number, as a text, too."""
    for text in FORMULAS:
        assert cells(rows.write_csv, text) == [f"'{text}"]
        assert cells(rows.write_raw_csv, text) == [text]
    for value in [*PLAIN[:-1], -1.5, -3]:
        assert cells(rows.write_csv, value) == [str(value)]


def cells(write: rows.Writer, value: object) -> list[str]:
    out = io.StringIO(newline="")
    write(out, ["x"], ["VARCHAR"], [[value]])
    return list(csv.reader(io.StringIO(out.getvalue(), newline="")))[1]


def test_raw_csv_leaves_formulas_and_needs_csv(command: Command) -> None:
    ask = ("query", "SELECT '=1+1' AS x, -1.5 AS y", ROOT / RUNS["r_ok"], "--no-catalog")
    command(*ask, "--format", "csv")
    assert command.out == "x,y\n'=1+1,-1.5\n"
    command(*ask, "--format", "csv", "--raw-csv")
    assert command.out == "x,y\n=1+1,-1.5\n"
    assert command(*ask, "--raw-csv") == 2


def test_sarif_names_files_by_uris(tmp_path: Path, command: Command) -> None:
    """A folder's name with spaces, `%`, `#`, `?` and letters beyond ASCII comes back from its URI."""
    run = tmp_path / "a b%20#c?d é" / "r"
    shutil.copytree(ROOT / RUNS["r_ok"], run)
    (run / "progress.json").unlink()
    command("verify", run, "--format", "sarif")
    results = json.loads(command.out)["runs"][0]["results"]
    uris = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results]
    assert uris
    for uri in uris:
        assert uri.isascii() and uri.startswith("file:///") and not set(uri) & set(' #?"<>')
        assert unquote(urlsplit(uri).path).startswith(str(run))
