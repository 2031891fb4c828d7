"""Ctrl-C while a command starts: one line and 130, wherever it strikes."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import COMMANDS
from tests.tools import interrupting, striking

RUN, OUT = "{run}", "{out}"
ARGUMENTS: dict[str, list[str]] = {
    "replay": [RUN],
    "repair": [RUN],
    "close": [RUN],
    "verify": [RUN],
    "runs": [RUN],
    "show": [RUN],
    "reuse": ["plan", RUN],
    "diagnose": [RUN],
    "task": [RUN, "arith-000"],
    "tail": [RUN],
    "watch": [RUN, "--once"],
    "diff": [RUN, RUN],
    "query": ["FROM runs", RUN],
    "scrub": [RUN, OUT],
    "index": [RUN],
    "export": [RUN, OUT, "--to", "parquet"],
}
"""Each command's own arguments. A command that is missing here fails its test."""


@pytest.mark.parametrize(("number", "name"), [*enumerate(COMMANDS)])
def test_ctrl_c_while_a_command_starts_is_one_line(
    number: int, name: str, run_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every 29th import or open, and after the last; each command is struck at places of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = [word.format(run=run_dir("r_ok"), out=tmp_path / "out") for word in ARGUMENTS[name]]
    program = [sys.executable, striking.__file__, str(1 + number), "29"]
    process = interrupting.start([*program, name, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, told = process.communicate(timeout=interrupting.DEADLINE_SECONDS * 2)
    assert "at place" not in told and "Traceback" not in told
    copies = re.search(r"^(\d+) copies$", told, re.MULTILINE)
    assert copies and int(copies[1]) >= 10, told
