"""Fifty canaries in a run: no command shows one, and the copy that `scrub` makes holds none and verifies clean."""

import hashlib
import json
import os
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore.operations.verify.verify import Options, verify_run
from eventstore.run.directory import RunDir
from eventstore.stream.scan import scan
from tests.tools import breaking
from tests.tools.commands import Command

Copy = Callable[[str], Path]


def canaries() -> Iterator[str]:
    """Made-up tokens, all different, of forms that issuers document."""
    chance = random.Random(14)
    while True:
        letters = "".join(chance.choices(string.ascii_letters + string.digits, k=34))
        yield f"ghp_aB{letters}"


def snapshot(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def taint(run: Path) -> list[str]:
    """Put canaries into payloads of all kinds and into every file; return them."""
    fresh, used = canaries(), []

    def canary(words: str = "key {}") -> str:
        used.append(next(fresh))
        return words.format(used[-1])

    seen: set[str] = set()
    lines = []
    for line in (run / "progress.jsonl").read_bytes().splitlines():
        members: dict[str, Any] = json.loads(line)
        if members["event"] not in seen:
            seen.add(members["event"])
            members["payload"] = {**(members["payload"] or {}), "note": canary(), "deep": [{"x": canary("a\n{}")}]}
            if members["event"] == "run_finished":
                members["payload"]["error"] = canary("401 for https://user:{}@host")
        lines.append(json.dumps(members).encode() + b"\n")
    (run / "progress.jsonl").write_bytes(b"".join(lines))
    for path in sorted(run.rglob("*.json")):
        members = json.loads(path.read_text())
        if isinstance(members, dict) and path.name != "progress.json":
            members["extra_note"] = canary()
            if path.name == "run_info.json":
                members["error"] = canary("401 for https://user:{}@host")
            if path.name == "result.json":
                members["final_answer"] = canary("the answer is {}")
            path.write_text(json.dumps(members, indent=2))
    for name in ("run.log", "summary.md"):
        with (run / name).open("a") as file:
            file.writelines(f"12:00:00 INFO {canary()}\n" for _ in range(5))
    while len(used) < 50:
        note = breaking.attempt_dir(run) / f"note-{len(used)}.txt"
        note.write_text(canary("export TOKEN={}\n"))
    return used


@pytest.fixture
def tainted(run_dir: Copy) -> tuple[Path, list[str]]:
    run = run_dir("r_retry")
    used = taint(run)
    assert len(set(used)) >= 50
    return run, used


def commands(run: Path, folder: Path) -> list[tuple[object, ...]]:
    task = json.loads(next(run.glob("details/*/*/task.json")).read_text())["task_id"]
    read = [(name, run, *more) for name in ("show", "runs", "diagnose") for more in ((), ("--json",))]
    verify = [("verify", run, "--secrets", "all", "--format", form) for form in ("text", "json", "sarif", "junit")]
    rows = [("query", "timeline", run, "--param", f"run={run.name}"), ("query", "SELECT error FROM runs", run)]
    raw = "SELECT * FROM events"
    rows += [
        ("query", raw, run, "--no-catalog", "--masked", "--format", form)
        for form in ("table", "json", "jsonl", "csv", "markdown")
    ]
    return [
        *read,
        *verify,
        *rows,
        ("diagnose", run, "--format", "markdown"),
        ("tail", run),
        ("task", run, task),
        ("task", run, task, "--json"),
        ("watch", run, "--once"),
        ("watch", run, "--once", "--json"),
        ("diff", f"{run}@3", run),
        ("diff", f"{run}@3", run, "--json"),
        ("replay", run, "--dry-run"),
        ("replay", run, "--dry-run", "--json"),
        ("replay", run, "--at-event", "30"),
        ("repair", run, "--json"),
        ("scrub", run, folder / "copy", "--json"),
    ]


def test_no_command_shows_a_canary(tainted: tuple[Path, list[str]], tmp_path: Path, command: Command) -> None:
    run, used = tainted
    for call in commands(run, tmp_path):
        command(*call)
        shown = [canary for canary in used if canary in command.out or canary in command.err]
        assert not shown, (call, shown[:3])


@pytest.mark.parametrize("sealed", [False, True])
def test_the_copy_holds_no_canary_and_verifies_as_the_original(
    tainted: tuple[Path, list[str]], tmp_path: Path, command: Command, sealed: bool
) -> None:
    """The original keeps every byte; the copy's stream is sealed where the original's was, and says what it is."""
    run, used = tainted
    if sealed:
        breaking.seal_stream(run)
    before, out = snapshot(run), tmp_path / "shared" / run.name
    out.parent.mkdir()
    assert command("scrub", run, out) == 0, command.err
    assert snapshot(run) == before
    held = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert not [canary for canary in used if canary.encode() in held]
    stream = scan(out / "progress.jsonl")
    events = [record.event for record in stream]
    assert stream.sealed is sealed and not stream.damaged
    assert (type(events[-1]).__name__ == "StreamScrubbed") is sealed
    options = Options(secrets="all")
    then, now = (verify_run(RunDir(folder, folder.name), options).counts for folder in (run, out))
    assert then.pop("secret") > 0 and "secret" not in now
    assert {code: now.get(code, 0) for code in now} == {code: then.get(code, 0) for code in now}


def test_a_clean_run_is_copied_byte_for_byte(run_dir: Copy, tmp_path: Path, command: Command) -> None:
    run = run_dir("r_ok")
    assert command("scrub", run, tmp_path / "copy") == 0
    assert snapshot(tmp_path / "copy") == snapshot(run)


def test_an_artifact_is_masked_and_its_manifest_follows(run_dir: Copy, tmp_path: Path, command: Command) -> None:
    """A text in an artifact is masked, and the fingerprint that the manifest holds is that of the copy."""
    run = run_dir("r_ok")
    canary = next(canaries())
    breaking.add_artifacts(run)
    artifact = breaking.artifact_of(run)
    text = artifact if artifact.is_file() else next(path for path in artifact.rglob("*") if path.is_file())
    text.write_text(f"TOKEN={canary}\n")
    assert command("scrub", run, tmp_path / "copy") == 0
    assert canary not in (tmp_path / "copy" / text.relative_to(run)).read_text()
    counts = verify_run(RunDir(tmp_path / "copy", run.name), Options(secrets="all")).counts
    assert not {code for code in counts if code.startswith("artifact")}


def test_what_cannot_be_copied_is_named(run_dir: Copy, tmp_path: Path, command: Command) -> None:
    """Special files and links that lead out are left out, binary files are copied; both are listed."""
    run = run_dir("r_ok")
    os.mkfifo(run / "pipe")
    (run / "out").symlink_to("/etc/hostname")
    (run / "picture.png").write_bytes(b"\x89PNG\0\xff")
    assert command("scrub", run, tmp_path / "copy", "--json") == 0
    assert sorted(command.document["left_out"]) == ["out", "pipe"]
    assert command.document["binary"] == ["picture.png"]
    assert (tmp_path / "copy" / "picture.png").read_bytes() == b"\x89PNG\0\xff"
    assert not os.path.lexists(tmp_path / "copy" / "pipe") and not os.path.lexists(tmp_path / "copy" / "out")


def test_refusals_leave_nothing_behind(run_dir: Copy, tmp_path: Path, command: Command) -> None:
    """An OUT that exists or lies inside the run, a folder that isn't there, a damaged stream, a run that isn't one."""
    run, place = run_dir("r_ok"), tmp_path / "place"
    (place / "there").mkdir(parents=True)
    assert command("scrub", run, place / "there") == 1
    assert command("scrub", run, run / "copy") == 1
    assert command("scrub", run, place / "none" / "copy") == 3
    assert command("scrub", place, place / "copy") == 3
    with (run / "progress.jsonl").open("ab") as stream:
        stream.write(b"rubbish\n")
    assert command("scrub", run, place / "copy") == 1
    assert os.listdir(place) == ["there"] and not [name for name in os.listdir(run) if "copy" in name]


def test_an_interrupt_leaves_no_half_a_copy(
    run_dir: Copy, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eventstore.operations.scrub._keep_mode", interrupt)
    place = tmp_path / "place"
    place.mkdir()
    assert command("scrub", run_dir("r_ok"), place / "copy") == 130
    assert os.listdir(place) == []


def test_diagnose_and_export_point_to_scrub(tainted: tuple[Path, list[str]], tmp_path: Path, command: Command) -> None:
    run, _ = tainted
    command("diagnose", run, "--json")
    count = len(command.document["secrets"])
    assert any(f"{count} credentials" in step and "compass-es scrub" in step for step in command.document["next_steps"])
    assert command("export", run, tmp_path / "out", "--to", "parquet", "--catalog", tmp_path / "c.duckdb") == 0
    assert "compass-es scrub" in command.err
