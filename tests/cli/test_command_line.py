"""The command line as a stranger meets it: help, wrong calls, pipes that close, disks that are full, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import COMMANDS
from cli.output import clean, duration, plain
from eventstore import errors
from tests.tools import interrupting
from tests.tools.commands import Command
from tests.tools.recorded import RUNS
from tests.tools.streams import plain_line

ROOT = Path(__file__).parents[2]
CODE = "import sys; from cli.main import main; main(sys.argv[1:])"


def run(*arguments: object, **options: object) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", CODE, *map(str, arguments)]
    return subprocess.run(argv, text=True, cwd=ROOT, **({"capture_output": True} | options))  # type: ignore[call-overload, no-any-return]


def test_help_of_everything(command: Command) -> None:
    """Each command explains itself, and the group names each."""
    assert command("--help") == 0
    assert all(name in command.out for name in COMMANDS)
    for name in COMMANDS:
        assert command(name, "--help") == 0
        assert command.out.startswith(f"Usage: compass-es {name}")
    assert command("--version") == 0 and command.out.startswith("compass-es ")
    assert command() == 2


def test_every_command_has_its_file_its_line_in_the_documents_and_no_other_is_there() -> None:
    """The group's table, the modules, docs/cli.md and README.md name the same commands."""
    modules = {path.stem for path in (ROOT / "cli").glob("*.py") if "\ndef command(" in path.read_text("utf-8")}
    assert modules == COMMANDS.keys()
    table = re.findall(r"^\| `(\w+)` \| (.+) \|$", (ROOT / "docs/cli.md").read_text("utf-8"), flags=re.MULTILINE)
    documented = {name: words for name, words in table if not words.isdigit()}
    assert documented == COMMANDS
    readme = (ROOT / "README.md").read_text("utf-8")
    told = set(re.findall(r"compass-es +(\w+)", readme)) | set(re.findall(r"`(\w+)`", readme))
    assert told >= COMMANDS.keys()


def test_wrong_calls_say_so_in_words_or_json(command: Command) -> None:
    """Exit 2; with --json one document on stdout."""
    assert command("replay", "--no-such-option") == 2 and "No such option" in command.err
    assert command("show", "--json") == 2
    assert command.document["error"]["kind"] == "usage"


def test_every_kind_of_error_has_an_exit_code() -> None:
    """The one place that maps errors to codes knows them all."""
    from cli.output import EXIT_CODES

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CompassError)]
    assert len(kinds) >= 10
    for kind in kinds:
        assert any(base in EXIT_CODES for base in kind.__mro__)


def test_reader_of_the_pipe_that_goes_away_is_no_error(runs_root: Path) -> None:
    """`compass-es runs … | head -1`: no traceback, no complaint."""
    for arguments in (["runs", runs_root], ["verify", runs_root, "--json"], ["show", runs_root / RUNS["r_odd"]]):
        argv = [sys.executable, "-c", CODE, *map(str, arguments)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
        process.stderr.close()
        assert process.wait() in (141, 0) and b"Traceback" not in told and b"Broken" not in told


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_full_disk_under_stdout_gets_words(runs_root: Path, more: list[str]) -> None:
    """Output that can't be written is exit 3 with the reason."""
    with open("/dev/full", "w") as full:
        done = run("runs", runs_root, *more, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert done.returncode == 3 and "No space left" in done.stderr and "Traceback" not in done.stderr


def test_terminal_without_letters_for_it(runs_root: Path) -> None:
    """An ASCII terminal shows escapes instead of failing."""
    done = run("show", runs_root / RUNS["r_odd"], env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_ctrl_c_ends_at_once_with_130(tmp_path: Path) -> None:
    """An interrupt in the middle of a long scan."""
    with (tmp_path / "progress.jsonl").open("wb") as stream:
        lines = b"".join(plain_line(n, payload={"x": "é" * 200}) + b"\n" for n in range(20_000))
        for _ in range(12):
            stream.write(lines)
    argv = [sys.executable, "-c", "import cli.show; print('go', flush=True)\n" + CODE, "show", str(tmp_path)]
    process = interrupting.start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    interrupting.wait_until(process, lambda: interrupting.has_open(process, tmp_path / "progress.jsonl"))
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130 and told.strip().endswith("interrupted") and "Traceback" not in told


def test_text_from_records_is_made_harmless() -> None:
    """Control, escape, direction characters and lone surrogates become visible escapes; other scripts stay."""
    assert clean("a\x1b[31m\r\n\t\x9b\u202e\ud800\x00z") == "a\\x1b[31m\\r\\n\\t\\x9b\\u202e\\ud800\\x00z"
    assert clean("金融 é 🙂") == "金融 é 🙂"
    assert clean("x" * 50, 10) == "x" * 9 + "…"


def test_json_output_is_one_plain_document(tmp_path: Path, command: Command) -> None:
    """Numbers that JSON has no form for become null, everything is ASCII."""
    (tmp_path / "progress.jsonl").write_bytes(
        plain_line(0, task_id="é\ud800", payload={"x": float("nan")}, timestamp=float("nan")) + b"\n"
    )
    assert command("replay", tmp_path, "--json", "--dry-run") == 0
    assert command.out.isascii()
    document = json.loads(command.out, parse_constant=pytest.fail)
    assert document["progress"]["updated_at"] is None
    assert plain({1: (float("inf"), {2})}) == {"1": [None, [2]]}


def test_durations_for_people() -> None:
    """Seconds, minutes, hours; a clock that stepped back gives a minus."""
    shown = [duration(value) for value in (0.04, 59.9, 61, 3725, -7160, None, float("nan"))]
    assert shown == ["0.0s", "59.9s", "1m 01s", "1h 02m", "-1h 59m", "", ""]
