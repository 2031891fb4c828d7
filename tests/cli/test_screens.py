"""Screens for people, as they look: golden text at several widths, and what a real terminal gets.

A wanted change of a screen: run `python tests/cli/test_screens.py` and look at the difference.
"""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli import output
from tests.tools.commands import Command
from tests.tools.failures import Copy, events_of, write_events
from tests.tools.recorded import ROOT as RUNS_ROOT

SCREENS = Path(__file__).parents[1] / "data/screens"
TOY = "toy-7b_toy_arith_openai_chat"
CALLS = {
    "diagnose-429": ["diagnose", "planted/p_429"],
    "diagnose-killed": ["diagnose", f"{TOY}/r_kill_mid"],
    "diagnose-fine": ["diagnose", f"{TOY}/r_ok"],
    "diagnose-markdown": ["diagnose", f"{TOY}/r_surrogate", "--format", "markdown"],
    "task-retried": ["task", f"{TOY}/r_retry2", "arith-001", "--log-lines", "3"],
    "diff-two-runs": ["diff", f"{TOY}/r_retry", f"{TOY}/r_retry2"],
    "diff-moments": ["diff", f"{TOY}/r_ok@20", f"{TOY}/r_ok"],
    "watch-killed": ["watch", f"{TOY}/r_kill_mid", "--once"],
}
WIDTHS = (60, 80, 120)


def at_width(width: int) -> Any:
    """A console that is so wide, whatever stdout is."""
    return lambda: Console(width=width, color_system=None, highlight=False, emoji=False, markup=False)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CALLS)
def test_a_screen_looks_as_it_was_agreed(
    name: str, width: int, runs_root: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte; no table is wider than the terminal, and nothing but text is in it."""
    monkeypatch.chdir(runs_root)
    monkeypatch.setattr(output, "console", at_width(width))
    command(*CALLS[name])
    assert command.out == (SCREENS / f"{name}.{width}.txt").read_text()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", command.out)


def in_terminal(arguments: list[str], width: int, **environment: str) -> bytes:
    """What a terminal of that width gets from a command."""
    script = "from cli.main import main; main()"
    main, side = pty.openpty()
    env = os.environ | {"COLUMNS": str(width), "LINES": "24", "TERM": "xterm-256color"} | environment
    env.pop("FORCE_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=side,
        stderr=side,
        stdin=side,
        env=env,
        cwd=Path(__file__).parents[2],
    )
    os.close(side)
    parts = []
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(main)
    process.wait(timeout=60)
    return b"".join(parts)


COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def test_a_terminal_gets_tables_as_wide_as_it_is(run_dir: Copy) -> None:
    """At 80 columns no line of a table is longer; NO_COLOR leaves no colour."""
    run = str(run_dir("r_kill_mid"))
    shown = in_terminal(["watch", run, "--once"], 80)
    text = COLOUR.sub(b"", shown).decode()
    assert "\x1b" not in text and "run_harness" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    plain = in_terminal(["watch", run, "--once"], 80, NO_COLOR="1")
    assert not re.search(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7])", plain)


def test_the_live_board_ends_and_leaves_the_terminal_in_order(run_dir: Copy) -> None:
    """It draws the board, shows the cursor again, and every control sequence is one of its own."""
    hostile = "\x1b]0;owned\x07\x1b[2J\u202e"
    run = run_dir("r_kill_mid")
    write_events(run, [e | {"task_id": e["task_id"] and hostile + e["task_id"]} for e in events_of(run)])
    shown = in_terminal(["watch", str(run)], 80)
    assert shown.endswith(b"\x1b[?25h") or b"\x1b[?25h" in shown[-20:]
    rest = CONTROL.sub(b"", shown)
    assert b"\x1b" not in rest and b"\x07" not in rest and b"[2J" in rest and "\u202e".encode() not in rest


def test_a_small_terminal_and_wide_characters_do_no_harm(run_dir: Copy) -> None:
    """20 columns, ids in wide and right-to-left scripts: it draws and ends."""
    run = run_dir("r_kill_mid")
    write_events(run, [e | {"task_id": e["task_id"] and "任務مهمة🧪" + e["task_id"]} for e in events_of(run)])
    for arguments in (["watch", str(run)], ["diagnose", str(run), "--no-pager"], ["task", str(run), "🧪arith-009"]):
        text = in_terminal(arguments, 20).decode("utf-8", "replace").replace("\r\n", "")
        assert "任務" in text or arguments[0] == "watch"


PAGER = "sed s/^/|/"
"""A pager whose work can be seen, and that waits for nobody."""


@pytest.mark.parametrize("call", ["show", "runs", "diagnose"])
def test_long_output_goes_through_the_pager_of_a_terminal(call: str, run_dir: Copy, runs_root: Path) -> None:
    """Every line of it, and none with --no-pager, in a terminal that is tall enough, or as JSON."""
    path = str(runs_root) if call == "runs" else str(run_dir("r_kill_mid"))
    shown = in_terminal([call, path], 80, PAGER=PAGER, LINES="5").decode()
    lines = [line for line in COLOUR.sub(b"", shown.encode()).decode().splitlines() if line]
    assert len(lines) > 5 and all(line.startswith("|") for line in lines)
    for arguments, height in ((["--no-pager"], "5"), ([], "500"), (["--json"], "5")):
        plain = in_terminal([call, path, *arguments], 80, PAGER=PAGER, LINES=height).decode()
        assert plain and not plain.startswith("|") and "\n|" not in plain


def test_output_without_a_terminal_knows_no_pager(run_dir: Copy) -> None:
    """Piped, it is as it ever was."""
    program = [sys.executable, "-c", "from cli.main import main; main()", "show", str(run_dir("r_kill_mid"))]
    env = os.environ | {"PAGER": PAGER, "LINES": "5"}
    done = subprocess.run(program, capture_output=True, text=True, env=env, cwd=Path(__file__).parents[2])
    assert done.returncode == 0 and done.stdout.startswith("r_kill_mid") and "\n|" not in done.stdout


def test_a_reader_that_goes_away_is_no_error(run_dir: Copy) -> None:
    """A closed pipe ends each command without a word."""
    for arguments in (["tail", str(run_dir("r_retry2"))], ["diagnose", str(run_dir("p_429"))]):
        process = subprocess.Popen(
            [sys.executable, "-c", "from cli.main import main; main()", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate(timeout=60)
        assert err == b""


if __name__ == "__main__":
    import contextlib
    import io

    from cli.main import main

    SCREENS.mkdir(exist_ok=True)
    os.chdir(RUNS_ROOT)
    for screen, call in CALLS.items():
        for columns in WIDTHS:
            output.console = at_width(columns)
            with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
                main(call)
            (SCREENS / f"{screen}.{columns}.txt").write_text(said.getvalue())
