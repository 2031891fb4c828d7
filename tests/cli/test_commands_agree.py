"""No two commands contradict each other: each fact that several of them state is the same in all, of every run."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from projections.snapshots.counts import COUNTERS
from tests.tools.commands import Command
from tests.tools.recorded import DATA, ROOT, RUNS, unpack

FACTS = ("run_id", "status", "life", "events", "retries", "duration_seconds", "started_at", "last_event_at", "error")
ARCHIVES = ("failures", "cases")


def _in_archives() -> list[str]:
    """Names of runs in the archives, as `archive:path`."""
    names = []
    for archive in ARCHIVES:
        with tarfile.open(DATA / f"{archive}.tar.xz") as packed:
            files = [Path(member.name) for member in packed.getmembers() if member.isfile()]
        folders = {path.parent for path in files if path.name in ("run_info.json", "progress.jsonl")}
        names += [f"{archive}:{folder.as_posix()}" for folder in sorted(folders)]
    return names


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of the archives, for reading only."""
    root = tmp_path_factory.mktemp("unpacked")
    for archive in ARCHIVES:
        unpack(archive, root / archive)
    return root


class Statements:
    """What each command says of one fact; `clashes` lists the facts of which two commands say different things."""

    def __init__(self) -> None:
        self.said: dict[str, dict[str, Any]] = {}

    def note(self, command: str, fact: str, value: Any) -> None:
        """Keep a value; lengths of time to the millisecond, as SQL's timestamps and floats differ below."""
        if fact.endswith("_seconds") and value is not None:
            value = round(value, 3)
        self.said.setdefault(fact, {})[command] = value

    def note_all(self, command: str, members: dict[str, Any], facts: tuple[str, ...]) -> None:
        for fact in facts:
            self.note(command, fact, members[fact])

    @property
    def clashes(self) -> dict[str, dict[str, Any]]:
        return {
            fact: by_command
            for fact, by_command in self.said.items()
            if len({json.dumps(value, sort_keys=True) for value in by_command.values()}) > 1
        }


def flights(found: list[dict[str, Any]]) -> list[Any]:
    """Task, attempt, phase and times of attempts in flight, in one order."""
    keys = ("task_id", "attempt", "phase")
    times = ("duration_seconds", "phase_seconds")
    rows = [[flight[key] for key in keys] + [round(flight[time] or 0.0, 3) for time in times] for flight in found]
    return sorted(rows, key=str)


def phases(found: list[dict[str, Any]]) -> list[Any]:
    """The phase table, in the order of names."""
    return sorted([[row["phase"], row["stays"], row["running"], round(row["total_seconds"], 3)] for row in found])


def statements_of(run: Path, command: Command) -> Statements:
    """Call every command that states facts of one run."""
    statements = Statements()

    def say(*arguments: object) -> Any:
        assert command(*arguments, "--json") in (0, 1), (arguments, command.err, command.out[-500:])
        return command.document

    show = say("show", run)
    statements.note_all("show", show, COUNTERS + FACTS)
    statements.note("show", "in flight", flights(show["in_flight"]))
    statements.note("show", "phases", phases(show["phases"]))
    stays = [[row["phase"], row["stays"], round(row["total_seconds"], 3)] for row in show["phases"] if row["stays"]]
    statements.note("show", "finished stays", sorted(stays))
    statements.note("show", "ended", show["ended"])
    [row] = say("runs", run)["runs"]
    statements.note_all("runs", row, COUNTERS + FACTS)
    assert command("watch", run, "--once", "--json") == 0
    page = json.loads(command.out)
    statements.note_all("watch", page, COUNTERS + FACTS)
    statements.note("watch", "in flight", flights(page["in_flight"]))
    statements.note("watch", "phases", phases(page["phases"]))
    statements.note("watch", "ended", page["ended"])
    report = say("diagnose", run)
    statements.note_all("diagnose", report["counts"], COUNTERS)
    statements.note_all(
        "diagnose", report | {"events": report["stream"]["events"], "retries": report["retries"]["count"]}, FACTS
    )
    statements.note("diagnose", "in flight", flights(report["in_flight"]))
    statements.note("diagnose", "ended", report["ended"])
    statements.note("diagnose", "outcome is the status of a run that ended", report["ended"])
    ended = report["outcome"] == report["status"] or (report["ended"] and report["outcome"] == "unknown")
    statements.note("its outcome", "outcome is the status of a run that ended", ended)
    _note_diff(statements, say("diff", run, run))
    _note_replay(statements, say("replay", run, "--dry-run"))
    _note_history(statements, run, command)
    reports = say("verify", run, "--secrets", "none")
    statements.note("verify", "events", reports["checked"]["events"])
    if reports["severities"]["error"]:
        statements.note("verify", "something is wrong", True)
        wrong = bool(report["causes"]) or report["outcome"] not in ("completed", "running")
        statements.note("diagnose", "something is wrong", wrong)
    plan = say("reuse", "plan", run)
    if plan["refusal"] is None and report["reuse"]["keeps"] is not None:
        statements.note("diagnose", "kept by reuse", report["reuse"]["keeps"])
        statements.note("reuse plan", "kept by reuse", plan["reused_tasks"])
    for task_id in sorted({flight["task_id"] for flight in show["in_flight"] if flight["task_id"]})[:3]:
        task = say("task", run, task_id)
        own = [flight for flight in show["in_flight"] if flight["task_id"] == task_id]
        statements.note("show", f"in flight of {task_id}", flights(own))
        statements.note("task", f"in flight of {task_id}", flights(task["in_flight"]))
        lengths = {attempt["attempt"]: attempt["duration_seconds"] for attempt in task["attempts"]}
        for flight in own:
            if flight["attempt"] is not None:
                name = f"{task_id} {flight['attempt']} duration_seconds"
                statements.note("show", name, flight["duration_seconds"])
                statements.note("task", name, lengths[flight["attempt"]])
    for slow in show["slowest"][:2]:
        task = say("task", run, slow["task_id"])
        for name in ("status", "retries", "duration_seconds"):
            statements.note("show", f"{slow['task_id']} {name}", slow[name])
            statements.note("task", f"{slow['task_id']} {name}", task[name])
    return statements


def _note_diff(statements: Statements, diff: dict[str, Any]) -> None:
    for name in ("run_id", "status", "events"):
        statements.note("diff", name, diff["a"][name])
    stays = [[row["phase"], row["stays"]["a"], round(row["total_seconds"]["a"], 3)] for row in diff["phases"]]
    statements.note("diff", "finished stays", sorted(stays))
    assert not diff["counts"] and not diff["tasks"]


def _note_replay(statements: Statements, document: dict[str, Any]) -> None:
    statements.note("replay", "events", document["events"])
    if document["progress"] is not None:
        statements.note_all("replay", document["progress"], COUNTERS)


def _note_history(statements: Statements, run: Path, command: Command) -> None:
    columns = [*COUNTERS, "run_id", "status", "events", "retries", "duration_seconds"]
    sql = f"SELECT {', '.join(columns[:-1])}, seconds AS duration_seconds, life FROM runs"
    assert command("query", sql, run, "--no-catalog", "--json") == 0, command.err
    [row] = command.document
    row["duration_seconds"] = None if (row["duration_seconds"] or 0) < 0 else row["duration_seconds"]
    beyond = [name for name in COUNTERS if row[name] is None]  # NULL where no column can hold it
    assert all(statements.said[name]["show"] > 2**63 for name in beyond)
    statements.note_all("query", row, tuple(name for name in columns if name not in beyond))
    state = statements.said["life"]["show"]["state"]
    statements.note("show", "life's state", state)
    statements.note("query", "life's state", row["life"])


def check(run: Path, command: Command) -> None:
    """Assert that no two commands say different things of one fact."""
    clashes = statements_of(run, command).clashes
    assert not clashes, json.dumps(clashes, indent=1)


@pytest.mark.parametrize("name", RUNS)
def test_commands_agree_on_a_recorded_run(name: str, runs_root: Path, command: Command) -> None:
    """Tasks, attempts in flight, phases, retries, duration, status, outcome, life, and what reuse keeps."""
    check(ROOT / RUNS[name], command)


@pytest.mark.parametrize("name", _in_archives())
def test_commands_agree_on_a_run_that_failed_or_is_damaged(name: str, unpacked: Path, command: Command) -> None:
    """The same of real failures, and of streams that are empty, mixed up or contradicted by stored files."""
    archive, _, path = name.partition(":")
    check(unpacked / archive / path, command)


def test_commands_agree_on_a_big_run(big_run: Path, command: Command) -> None:
    """Three hundred tasks, two attempts each."""
    check(big_run, command)
