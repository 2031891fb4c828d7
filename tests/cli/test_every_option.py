"""Every option of every command changes what the command says, writes or exits with: none is read and dropped.

A case is two calls that differ in one option. Words in capitals are places of the test's own folder (`Scene`).
"""

import json
import pkgutil
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec import Struct

from cli.main import commands as program
from eventstore.stream.lock_file import LOCK_NAME, render_slot, render_writer, slot_offset
from tests.operations.test_repair import mark_of
from tests.operations.test_scrub import canaries
from tests.tools import breaking
from tests.tools.commands import Command
from tests.tools.recorded import ROOT, RUNS

Prepare = Callable[[Path], None]
Seen = tuple[int, str, str, dict[str, str]]


class Case(Struct, frozen=True, kw_only=True):
    """Two calls: `call`, and `call` with `more` (`without` replaces the first where the option must have a value).

    Each call begins in a fresh folder with a writable copy of `run`, which `prepare` may change.
    """

    call: str
    more: str
    without: str | None = None
    run: str = "r_ok"
    prepare: Prepare | None = None


NO_EFFECT = {
    "tail --json": "hidden: the lines of tail are JSON with and without it",
}
"""Options that can change nothing, each with the reason."""


def damage(run: Path) -> None:
    """Break a line in the middle of the stream."""
    stream = run / "progress.jsonl"
    stream.write_bytes(stream.read_bytes().replace(b'"event"', b'"event', 1))


def lose_snapshot(run: Path) -> None:
    """Remove progress.json, so that there is something to rebuild."""
    (run / "progress.json").unlink()


def lose_sealed_records(run: Path) -> None:
    """Lose a line of a sealed stream, of which the mark says that it was on stable storage."""
    breaking.seal_stream(run)
    lines = (run / "progress.jsonl").read_bytes().splitlines(keepends=True)
    writer = render_writer({"id": "w", "host": "elsewhere", "pid": 1})
    (run / LOCK_NAME).write_bytes(writer.ljust(slot_offset(0)) + render_slot(mark_of(lines)))
    (run / "progress.jsonl").write_bytes(b"".join([*lines[:5], b"rubbish\n", *lines[6:]]))


def damage_and_lose_snapshot(run: Path) -> None:
    """Leave something to rebuild, from a stream that is damaged."""
    damage(run)
    lose_snapshot(run)


def say_that_it_ended(run: Path) -> None:
    """Let run_info.json say that the run was completed, of which its stream knows nothing."""
    change_run_info(run, status="completed")


def change_run_info(run: Path, **members: Any) -> None:
    path = run / "run_info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | members, indent=2))


def leak_in_a_file(run: Path) -> None:
    """Put a token into an attempt's folder, where only `--secrets all` looks."""
    (breaking.attempt_dir(run) / "note.txt").write_text(f"export TOKEN={next(canaries())}\n")


def list_known(run: Path) -> None:
    """Write a baseline next to the run."""
    from cli.verify import command as verify

    verify.main([str(run), "--write-baseline", str(run.parents[2] / "known.json")], standalone_mode=False)


def add_a_run(run: Path) -> None:
    """Put a second run next to the first."""
    shutil.copytree(ROOT / RUNS["r_kill_early"], run.parent / "r_kill_early")


def index_then_add(run: Path) -> None:
    """Make a catalog that knows one run of two."""
    from eventstore.history.sql import access

    access.index(run.parents[1], run.parents[2] / "catalog.duckdb")
    add_a_run(run)


def leave_files(run: Path) -> None:
    """Put files of others where the output is to be."""
    folder = run.parents[2]
    (folder / "rows.txt").write_text("mine\n")
    old = folder / "out" / "runs" / "benchmark=toy_arith" / "month=2026-11" / "data.parquet"
    old.parent.mkdir(parents=True)
    old.write_text("mine\n")


def write_sql(run: Path) -> None:
    (run.parents[2] / "ask.sql").write_text("SELECT 42 AS answer")


ROWS = "SELECT event FROM events ORDER BY seq"
QUERY = "query 'SELECT 1 AS x' RUN --no-catalog"

WANTED_OF_REUSE = (
    ("--attempts 3", "r_ok"),
    ("--strategy pass", "r_ok"),
    ("--benchmark other", "r_ok"),
    ("--retry-pattern 4..", "r_retry"),
    ("--max-retries 7", "r_ok"),
    ("--no-checkpoint-resume", "r_evalerr"),
)
"""Options that `reuse plan` and `reuse apply` share, each with a run on which it changes something."""

CASES: dict[str, Case] = {
    "--version": Case(call="", more="--version"),
    "replay --at-event": Case(call="replay RUN", more="--at-event 3"),
    "replay --at-time": Case(call="replay RUN", more="--at-time 2020-01-01"),
    "replay --dry-run": Case(call="replay RUN", more="--dry-run", prepare=lose_snapshot),
    "replay --out": Case(call="replay RUN", more="--out HERE/out"),
    "replay --force": Case(call="replay RUN", more="--force", prepare=damage_and_lose_snapshot),
    "replay --json": Case(call="replay RUN", more="--json"),
    "repair --apply": Case(call="repair RUN", more="--apply", prepare=damage),
    "repair --accept-loss": Case(call="repair RUN --apply", more="--accept-loss", prepare=lose_sealed_records),
    "repair --json": Case(call="repair RUN", more="--json"),
    "close --status": Case(
        call="close RUN --json", without="--status failed", more="--status timed_out", run="r_kill_mid"
    ),
    "close --error": Case(call="close RUN --status failed", more="--error 'no power'", run="r_kill_mid"),
    "close --force": Case(
        call="close RUN --status failed", more="--force", run="r_kill_mid", prepare=say_that_it_ended
    ),
    "close --json": Case(call="close RUN --status failed", more="--json", run="r_kill_mid"),
    "verify --strict": Case(call="verify RUN", more="--strict", run="r_kill_mid"),
    "verify --only": Case(call="verify RUN", more="--only secret", run="r_kill_mid"),
    "verify --ignore": Case(call="verify RUN", more="--ignore unsealed"),
    "verify --since": Case(call="verify RUN", more="--since 2099-01-01"),
    "verify --max-findings": Case(call="verify RUN", more="--max-findings 0", run="r_kill_mid"),
    "verify --baseline": Case(
        call="verify RUN", more="--baseline HERE/known.json", run="r_kill_mid", prepare=list_known
    ),
    "verify --write-baseline": Case(call="verify RUN", more="--write-baseline HERE/known.json", run="r_kill_mid"),
    "verify --secrets": Case(call="verify RUN", more="--secrets all", prepare=leak_in_a_file),
    "verify --format": Case(call="verify RUN", more="--format junit"),
    "verify --json": Case(call="verify RUN", more="--json"),
    "verify --rules": Case(call="verify RUN", more="--rules"),
    "runs --json": Case(call="runs RUNS", more="--json"),
    "show --at-event": Case(call="show RUN", more="--at-event 3"),
    "show --at-time": Case(call="show RUN", more="--at-time 2020-01-01"),
    "show --json": Case(call="show RUN", more="--json"),
    "diagnose --format": Case(call="diagnose RUN", more="--format markdown", run="r_surrogate"),
    "diagnose --history": Case(call="diagnose RUN --json", more="--history HERE/no-such"),
    "diagnose --json": Case(call="diagnose RUN", more="--json"),
    "task --log-lines": Case(call="task RUN arith-001", more="--log-lines 0", run="r_retry2"),
    "task --json": Case(call="task RUN arith-001", more="--json", run="r_retry2"),
    "tail --task": Case(call="tail RUN", more="--task arith-001", run="r_retry2"),
    "tail --event": Case(call="tail RUN", more="--event run_started"),
    "tail --phase": Case(call="tail RUN", more="--phase run_harness"),
    "tail --since": Case(call="tail RUN", more="--since 2099-01-01"),
    "tail --lines": Case(call="tail RUN", more="--lines 2"),
    "watch --json": Case(call="watch RUN --once", more="--json"),
    "watch --once": Case(call="watch RUN", more="--once"),
    "diff --json": Case(call="diff RUN@3 RUN", more="--json"),
    **{
        f"{words} {more.split()[0]}": Case(call=f"{words} {places} --json", more=more, run=run)
        for words, places in (("reuse plan", "RUN"), ("reuse apply", "RUN HERE/runs/new"))
        for more, run in WANTED_OF_REUSE
    },
    "reuse plan --json": Case(call="reuse plan RUN", more="--json"),
    "reuse plan --all": Case(call="reuse plan RUN", more="--all"),
    "reuse apply --json": Case(call="reuse apply RUN HERE/runs/new", more="--json"),
    "reuse apply --total-tasks": Case(call="reuse apply RUN HERE/runs/new --json", more="--total-tasks 9"),
    "reuse apply --copy": Case(call="reuse apply RUN HERE/runs/new", more="--copy", prepare=breaking.add_artifacts),
    "reuse lineage --root": Case(call="reuse lineage RUN", more="--root RECORDED", run="r_resumed"),
    "reuse lineage --json": Case(call="reuse lineage RUN", more="--json"),
    "query --file": Case(call="query RUN --no-catalog", more="--file HERE/ask.sql", prepare=write_sql),
    "query --param": Case(call="query 'SELECT $x AS x' RUN --no-catalog", more="--param x=1"),
    "query --list": Case(call=QUERY, more="--list"),
    "query --format": Case(call=QUERY, more="--format csv"),
    "query --json": Case(call=QUERY, more="--json"),
    "query --masked": Case(call="query \"SELECT 'TOKEN' AS x\" RUN --no-catalog", more="--masked"),
    "query --raw-csv": Case(call="query \"SELECT '=1+1' AS x\" RUN --no-catalog --format csv", more="--raw-csv"),
    "query --output": Case(call=QUERY, more="--output HERE/rows.txt"),
    "query --overwrite": Case(call=f"{QUERY} -o HERE/rows.txt", more="--overwrite", prepare=leave_files),
    "query --limit": Case(call=f"query '{ROWS}' RUN --no-catalog", more="--limit 2"),
    "query --explain": Case(call=QUERY, more="--explain"),
    "query --timeout": Case(
        call="query 'SELECT count(*) FROM range(300000000) a' RUN --no-catalog", more="--timeout 0.01"
    ),
    "query --memory": Case(call=QUERY, more="--memory much"),
    "query --trusted": Case(call="query \"COPY (SELECT 1) TO 'HERE/rows.csv'\" RUN --no-catalog", more="--trusted"),
    "query --no-refresh": Case(
        call="query 'SELECT run_key FROM runs ORDER BY 1' RUNS --catalog HERE/catalog.duckdb",
        more="--no-refresh",
        prepare=index_then_add,
    ),
    "query --catalog": Case(call="query 'SELECT 1' RUN", more="--catalog HERE/catalog.duckdb"),
    "query --no-catalog": Case(call="query 'SELECT 1' RUN", more="--no-catalog"),
    "scrub --json": Case(call="scrub RUN HERE/copy", more="--json"),
    "index --catalog": Case(call="index RUNS", more="--catalog HERE/catalog.duckdb"),
    "index --rebuild": Case(
        call="index RUNS --catalog HERE/catalog.duckdb --json", more="--rebuild", prepare=index_then_add
    ),
    "index --json": Case(call="index RUNS", more="--json"),
    "export --to": Case(call="export RUNS HERE/out", without="", more="--to parquet"),
    "export --catalog": Case(call="export RUNS HERE/out --to parquet", more="--catalog HERE/catalog.duckdb"),
    "export --overwrite": Case(call="export RUNS HERE/out --to parquet", more="--overwrite", prepare=leave_files),
    "export --json": Case(call="export RUNS HERE/out --to parquet", more="--json"),
}


def options(group: click.Group, above: str = "") -> Iterator[str]:
    """Yield every option as the words of its command and its longest name."""
    parameters = [(above, one) for one in group.params]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from options(command, f"{above}{name} ")
        elif command is not None:
            parameters += [(f"{above}{name} ", one) for one in command.params]
    for words, one in parameters:
        if isinstance(one, click.Option):
            yield words + max(one.opts, key=len)


IN_TESTS_OF_THEIR_OWN = {
    "runs --no-pager": "test_a_pager_is_called_unless_told_not_to",
    "show --no-pager": "test_a_pager_is_called_unless_told_not_to",
    "diagnose --no-pager": "test_a_pager_is_called_unless_told_not_to",
    "verify --jobs": "test_the_number_of_processes_reaches_those_who_start_them",
    "index --workers": "test_the_number_of_processes_reaches_those_who_start_them",
    "watch --interval": "test_the_interval_is_how_long_a_watch_waits",
    "tail --follow": "test_following_reads_on",
}
"""Options whose effect is no text: how many processes, how long, through which program. Each with its test below."""


def test_every_option_has_a_case_and_every_case_its_option() -> None:
    listed = sorted([*CASES, *NO_EFFECT, *IN_TESTS_OF_THEIR_OWN])
    assert sorted(options(program)) == listed
    assert all(name in globals() for name in IN_TESTS_OF_THEIR_OWN.values())


class Scene:
    """Makes the folder of a call anew, so that both calls of a case have the same places, and tells what one did."""

    def __init__(self, here: Path, command: Command) -> None:
        self._here = here
        self._command = command

    def run(self, name: str, prepare: Prepare | None) -> Path:
        """Empty the folder, and copy a recorded run into it."""
        shutil.rmtree(self._here, ignore_errors=True)
        run = self._here / "runs" / RUNS[name]
        shutil.copytree(ROOT / RUNS[name], run, symlinks=True)
        for path in (run, *run.rglob("*")):
            path.chmod(path.stat().st_mode | 0o600)
        if prepare is not None:
            prepare(run)
        return run

    def see(self, case: Case, more: str) -> Seen:
        """Return what a call exits with, prints and leaves, without what the clock puts into it."""
        run = self.run(case.run, case.prepare)
        places = {
            "HERE": self._here,
            "RUNS": self._here / "runs",
            "RUN": run,
            "RECORDED": ROOT,
            "TOKEN": TOKEN,
        }
        words = [
            re.sub(r"\b(HERE|RUNS|RUN|RECORDED|TOKEN)\b", lambda found: str(places[found[0]]), word)
            for word in shlex.split(f"{case.call} {more}")
        ]
        code = self._command(*words)
        return code, _without_clock(self._command.out), _without_clock(self._command.err), self._files()

    def _files(self) -> dict[str, str]:
        """Return each file of the folder: how many links it has, and its text without numbers and checksums."""
        found = {}
        for path in sorted(self._here.rglob("*")):
            name = re.sub("[0-9a-f]{16,}", "…", str(path.relative_to(self._here)))
            text = "" if path.suffix in (".duckdb", ".parquet", ".wal") or path.is_dir() else path.read_text("utf-8")
            found[name] = f"{0 if path.is_dir() else path.stat().st_nlink} {NUMBER.sub('', text)}"
        return found


TOKEN = next(canaries())
NUMBER = re.compile("[0-9a-f-]{8,}|-?[0-9][0-9.]*(e-?[0-9]+)?")


def _without_clock(text: str) -> str:
    text = re.sub(r"\b\d+(\.\d+)? s\b", "… s", text)
    return re.sub(r'("(?:duration_seconds|scrubbed_at|[a-z]*_?seconds)": )[-0-9.e]+', r"\1…", text)


@pytest.fixture
def scene(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here" / "cache"))
    monkeypatch.setattr("eventstore.results.tree_copy._reflink", lambda *_: False)  # it leaves no trace to look at
    return Scene(tmp_path / "here", command)


@pytest.mark.parametrize("option", CASES)
def test_an_option_changes_what_a_command_does(option: str, scene: Scene) -> None:
    """With it, the exit code, the output or the files are others; without it, a second call does the same again."""
    case = CASES[option]
    first, again = (scene.see(case, case.without or "") for _ in range(2))
    assert first[:3] == again[:3], "the case's own call differs from call to call, so it can show nothing"
    then = scene.see(case, case.more)
    varying = {name for name in first[3].keys() | again[3].keys() if first[3].get(name) != again[3].get(name)}
    files = [{name: text for name, text in seen[3].items() if name not in varying} for seen in (first, then)]
    assert then[:3] != first[:3] or files[0] != files[1]


@pytest.mark.parametrize("name", ["runs", "show", "diagnose"])
def test_a_pager_is_called_unless_told_not_to(
    name: str, runs_root: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    @contextmanager
    def paged(no_pager: bool) -> Iterator[None]:
        told.append(no_pager)
        yield

    monkeypatch.setattr(f"cli.{name}.paged", paged)
    for more in ((), ("--no-pager",)):
        command(name, runs_root / RUNS["r_ok"], *more)
    assert told == [False, True]


@pytest.mark.parametrize(
    ("call", "option", "target", "name"),
    [
        ("verify", "--jobs", "eventstore.operations.verify.verify.verify_runs", "processes"),
        ("index", "--workers", "eventstore.history.sql.access.index", "workers"),
    ],
)
def test_the_number_of_processes_reaches_those_who_start_them(
    call: str, option: str, target: str, name: str, scene: Scene, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = scene.run("r_ok", None), []
    original = pkgutil.resolve_name(target)

    def note(*arguments: Any, **named: Any) -> Any:
        told.append(named[name])
        return original(*arguments, **named)

    monkeypatch.setattr(target, note)
    for count in (1, 2):
        assert command(call, run, option, count) == 0
    assert told == [1, 2]


def test_the_interval_is_how_long_a_watch_waits(
    runs_root: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []

    def wait(seconds: float) -> None:
        told.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.watch.time.sleep", wait)
    for more in ((), ("--interval", 30)):
        assert command("watch", runs_root, *more) == 130
    assert told == [0.5, 15.0]


def test_following_reads_on(runs_root: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for what a run without an end may yet say; without the option the command leaves."""

    def wait(*_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.tail.Tail.wait", wait)
    run = runs_root / RUNS["r_kill_early"]
    assert (command("tail", run), command("tail", run, "--follow")) == (0, 130)
