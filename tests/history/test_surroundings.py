"""`query`, `index` and `export` in hostile surroundings: signals, full disks, foreign files, odd locales."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore.history.sql import ask
from eventstore.history.sql.access import CatalogChoice, open_history
from eventstore.history.sql.limits import LimitError
from tests.tools.commands import Command
from tests.tools.recorded import ROOT, RUNS

PROJECT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "from cli.main import main; main()"]
FOREVER = "SELECT count(*) FROM range(100000000000) AS a, range(100000) AS b WHERE hash(a.range) = hash(b.range)"
ENDLESS_ROWS = "SELECT range, repeat('x', 1000) AS text FROM range(1000000000)"
ONE = ROOT / RUNS["r_ok"]


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """An environment whose caches and temporary files are in a folder of the test."""
    for name in ("cache", "temporary"):
        (tmp_path / name).mkdir()
    return dict(os.environ) | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "temporary")}


def run(env: dict[str, str], *arguments: object, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    argv = [*PROGRAM, *(os.fsencode(str(one)) for one in arguments)]
    options = {"capture_output": True, "env": env, "cwd": PROJECT, "timeout": 120} | options
    return subprocess.run(argv, **options)  # type: ignore[call-overload, no-any-return]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(happened: Callable[[], Any]) -> Any:
    """What `happened` returns as soon as it is true; a minute is a failure."""
    deadline = time.monotonic() + 60
    while not (found := happened()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_that_runs_the_sql_ends_with_the_command(
    number: signal.Signals, surroundings: dict[str, str], tmp_path: Path
) -> None:
    """However the command ends; and its temporary files go with it."""
    argv = [*PROGRAM, "query", FOREVER, str(ONE), "--timeout", "600"]
    process = subprocess.Popen(argv, env=surroundings, cwd=PROJECT, stderr=subprocess.DEVNULL)
    (child,) = wait_until(lambda: children_of(process.pid))
    # Its limit on processor time is set right before the SQL runs.
    wait_until(lambda: "Max cpu time             unlimited" not in Path(f"/proc/{child}/limits").read_text())
    process.send_signal(number)
    assert process.wait(60) == -number
    wait_until(lambda: not is_running(child))
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_parquet_answer_that_takes_too_long_leaves_nothing(surroundings: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "answer.parquet"
    done = run(surroundings, "query", ENDLESS_ROWS, ONE, "--format", "parquet", "-o", out, "--timeout", "2")
    assert done.returncode == 1 and b"the time is up" in done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["cache", "temporary"]


def test_a_parquet_answer_may_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ask, "MAX_SPILLED_BYTES", 100_000)
    connection = open_history([ONE], catalog=CatalogChoice(off=True))
    with pytest.raises(LimitError, match="more than 100000 bytes"):
        ask.write_parquet(ask.ask(connection, ENDLESS_ROWS), tmp_path / "answer.parquet")
    connection.close()
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_process_that_runs_the_sql_are_told(surroundings: dict[str, str]) -> None:
    """A full disk, and no descriptor left: one sentence and exit code 3."""
    with open("/dev/full", "wb") as full:
        done = run(surroundings, "query", "SELECT 1", ONE, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (3, b"compass-es: the output can't be written: No space left on device\n")
    for descriptors in range(6, 16):
        limited = ["bash", "-c", f'ulimit -n {descriptors}; exec "$@"', "-", *PROGRAM, "query", "SELECT 1", str(ONE)]
        done = subprocess.run(limited, capture_output=True, env=surroundings, cwd=PROJECT)
        assert done.returncode == 0 or done.stderr, descriptors


def test_ctrl_c_in_an_export_ends_in_one_line_and_leaves_no_part(surroundings: dict[str, str], tmp_path: Path) -> None:
    code = """
import os, signal
from eventstore.history.sql import export
export.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGINT)
from cli.main import main
main()
"""
    argv = [sys.executable, "-c", code, "export", str(ONE), str(tmp_path / "out"), "--to", "parquet"]
    done = subprocess.run(
        argv,
        capture_output=True,
        env=surroundings,
        cwd=PROJECT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stderr.strip()) == (130, b"interrupted")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_what_a_killed_export_left_is_removed_by_the_next(surroundings: dict[str, str], tmp_path: Path) -> None:
    assert run(surroundings, "export", ONE, tmp_path / "out", "--to", "parquet").returncode == 0
    (file,) = (tmp_path / "out" / "runs").rglob("data.parquet")
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, others = file.with_name(f".data.parquet.{gone.pid}.part"), file.with_name(f".data.parquet.{os.getpid()}.part")
    left.touch()
    others.touch()
    (tmp_path / "out" / "manifest.json").unlink()
    again = run(surroundings, "export", ONE, tmp_path / "out", "--to", "parquet", "--overwrite")
    assert again.returncode == 0
    assert not left.exists() and others.exists()


# -- the catalog


def test_a_catalog_is_private(surroundings: dict[str, str], tmp_path: Path) -> None:
    """Runs may be readable by their owner only; a copy of them is no more open."""
    file = tmp_path / "catalog.duckdb"
    for _ in range(2):
        done = run(surroundings, "index", ROOT, "--catalog", file, preexec_fn=lambda: os.umask(0))
        assert done.returncode == 0
        for path in tmp_path.glob("catalog.duckdb*"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        file.chmod(0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_catalog_of_another_user_is_not_believed(surroundings: dict[str, str], tmp_path: Path) -> None:
    """Neither one that was named, nor one that was put where ours is kept."""
    assert run(surroundings, "index", ONE).returncode == 0
    (file,) = (tmp_path / "cache" / "compass-es").glob("*.duckdb")
    os.chown(file, 4321, 4321)
    done = run(surroundings, "query", "SELECT count(*) FROM events", ONE, "--no-refresh", "--format", "csv")
    assert done.stdout.split() == [b"count_star()", b"65"] and b"belongs to another user" in done.stderr
    for arguments in (("index", ONE), ("query", "SELECT 1", ONE)):
        done = run(surroundings, *arguments, "--catalog", file)
        assert done.returncode == 3 and b"belongs to another user" in done.stderr
    assert b"catalog saw" not in run(surroundings, "verify", ONE).stdout


def test_the_lock_of_a_catalog_follows_no_link(surroundings: dict[str, str], tmp_path: Path) -> None:
    file, target = tmp_path / "catalog.duckdb", tmp_path / "target"
    file.with_name("catalog.duckdb.lock").symlink_to(target)
    done = run(surroundings, "index", ONE, "--catalog", file)
    assert done.returncode == 3 and b"can't be written" in done.stderr and not target.exists()


# -- homes and locales


HOMELESS = """
import pwd
def getpwuid(number):
    raise KeyError(number)
pwd.getpwuid = getpwuid
from cli.main import main
main()
"""


def test_without_a_home_there_is_no_catalog(tmp_path: Path) -> None:
    """As for a user of a container whom its system doesn't know."""
    env = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}

    def homeless(*arguments: object) -> "subprocess.CompletedProcess[bytes]":
        argv = [sys.executable, "-c", HOMELESS, *map(str, arguments)]
        return subprocess.run(argv, capture_output=True, env=env, cwd=PROJECT)

    assert homeless("verify", ONE).returncode == 0
    done = homeless("query", "SELECT 1 AS one", ONE, "--format", "csv")
    assert done.stdout.split() == [b"one", b"1"] and b"set HOME or XDG_CACHE_HOME" in done.stderr
    done = homeless("index", ONE)
    assert done.returncode == 3 and done.stderr.count(b"\n") == 1 and b"set HOME" in done.stderr
    assert homeless("export", ONE, tmp_path / "out", "--to", "parquet").returncode == 0


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("locale", [ASCII, {"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}])
def test_sql_is_utf8_whatever_the_locale(locale: dict[str, str], surroundings: dict[str, str], tmp_path: Path) -> None:
    env, out = surroundings | locale, tmp_path / "out.csv"
    sql = "SELECT 'é' || $more AS text".encode()
    for words, given in (([sql], b""), ([b"-"], sql)):
        argv = [
            *PROGRAM,
            "query",
            *words,
            ONE,
            "--param",
            "more=ß".encode(),
            "--format",
            "csv",
            "-o",
            out,
            "--overwrite",
        ]
        done = subprocess.run(argv, input=given, capture_output=True, env=env, cwd=PROJECT)
        assert (done.returncode, done.stderr) == (0, b"")
        assert out.read_text("utf-8").split() == ["text", "éß"]


def test_bytes_that_are_not_utf8_are_named(surroundings: dict[str, str]) -> None:
    for argv, given in (
        ([b"SELECT '\xff'"], b""),
        ([b"-"], b"SELECT '\xff'"),
        ([b"SELECT $x", b"--param", b"x=\xff"], b""),
    ):
        words = [*PROGRAM, "query", argv[0], ONE, *argv[1:]]
        done = subprocess.run(words, input=given, capture_output=True, env=surroundings, cwd=PROJECT)
        assert done.returncode == 2 and b"is not UTF-8 from byte" in done.stderr, done.stderr


def test_a_broken_locale_keeps_other_words(command: Command) -> None:
    """A word that is text already stays as it is."""
    assert command("query", "SELECT 'é' AS text", ONE, "--no-catalog", "--format", "csv") == 0
    assert command.out.split() == ["text", "é"]


CLOSED = {
    "replay": ("--dry-run", "--json"),
    "repair": ("--json",),
    "verify": (),
    "runs": (),
    "show": (),
    "diagnose": (),
    "task": ("arith-001",),
    "tail": (),
    "watch": ("--once",),
    "diff": (ONE,),
    "query": (),
    "index": ("--json",),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_stdout_is_a_sentence(name: str, surroundings: dict[str, str]) -> None:
    """What has something to print says that it can't; what hasn't, runs."""
    words = [name, *(("SELECT 1",) if name == "query" else ()), ONE, *CLOSED[name]]
    argv = ["bash", "-c", 'exec "$@" >&-', "-", *PROGRAM, *map(str, words)]
    done = subprocess.run(argv, stderr=subprocess.PIPE, env=surroundings, cwd=PROJECT)
    assert (done.returncode, done.stderr) == (3, b"compass-es: the output can't be written: Bad file descriptor\n")


def test_all_standard_streams_may_be_closed(surroundings: dict[str, str]) -> None:
    argv = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "-", *PROGRAM, "replay", str(ONE), "--dry-run"]
    assert subprocess.run(argv, env=surroundings, cwd=PROJECT).returncode == 0
