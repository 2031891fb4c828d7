"""Certain is what a record says: over every recorded run, its record is among the evidence and is there."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore.format import events as ev
from eventstore.operations.close import close_run
from eventstore.operations.diagnose.diagnose import diagnose_run
from eventstore.recording.agentcompass import Recording
from eventstore.recording.progress_line import ProgressLine
from eventstore.recording.recorder import RunRecorder
from eventstore.stream.filesystem import FileSystem
from eventstore.stream.lock_file import NOTE_BYTES, NOTE_OFFSET, Note, parse_witness, read_witness, render_note
from projections.diagnose.causes import CAUSES
from projections.diagnose.certainty import CERTAIN_BY
from tests.tools.failures import PLANTED, Copy, plant
from tests.tools.recorded import ROOT, unpack

PROJECT = Path(__file__).parents[2]
REQUEST = {name: {"id": name} for name in ("model", "benchmark", "harness", "environment")}
Json = dict[str, Any]


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory: pytest.TempPathFactory, big_run: Path) -> list[Path]:
    """Every recorded run: those that lie unpacked, the big one, and those of the three archives."""
    root = tmp_path_factory.mktemp("certain")
    for archive in ("failures", "causes", "cases"):
        unpack(archive, root / archive)
    names = ("run_info.json", "progress.jsonl")
    return sorted({path.parent for base in (ROOT, root) for name in names for path in base.rglob(name)} | {big_run})


def test_nothing_is_certain_without_its_record(all_runs: list[Path]) -> None:
    """Each certain cause has evidence of a kind that may say it, and the file really has that record there."""
    certain: set[str] = set()
    for run in all_runs:
        for cause in diagnose_run(run)["causes"]:
            proofs = [place for place in cause["evidence"] if place["record"] in CERTAIN_BY.get(cause["code"], ())]
            assert (cause["certainty"] == "certain") == bool(proofs) or cause["code"] == "poisoned_task", (run, cause)
            for place in proofs:
                assert stands_there(run, place), (run, cause["code"], place)
            certain |= {cause["code"]} if cause["certainty"] == "certain" else set()
    assert len(all_runs) > 40 and len(certain) >= 10


@pytest.mark.parametrize("name", PLANTED)
def test_nothing_planted_is_certain_without_its_record(name: str, run_dir: Copy) -> None:
    """The same of recorded runs with an edit."""
    run = plant(name, run_dir)
    for cause in diagnose_run(run)["causes"]:
        proofs = [place for place in cause["evidence"] if place["record"] in CERTAIN_BY.get(cause["code"], ())]
        assert (cause["certainty"] == "certain") <= bool(proofs)
        assert all(stands_there(run, place) for place in proofs)


def stands_there(run: Path, place: Json) -> bool:
    """Whether the record of this kind is in the file, looked up without the code that gave the evidence."""
    path = run / place["file"]
    match place["record"]:
        case "end" if place["line"] is None:
            stored = json.loads(path.read_text())["status"]
            return stored not in ("", "running", "pending", "created") and f"status {stored}" in place["text"]
        case "end":
            event = line_of(path, place)
            return event["event"] == "run_finished" and str(event["status"]) in place["text"]
        case "event":
            event = line_of(path, place)
            lost = event["event"] == "records_lost" and "records_lost" in place["text"]
            nothing = event["event"] == "tasks_loaded" and not event["payload"]["total_tasks"]
            return lost or nothing or "before its predecessor" in place["text"]
        case "issue":
            words = re.escape(place["text"].split(": ")[1])
            return re.search(rf'"code":\s*"{words}"', path.read_text()) is not None
        case "phase":
            event = line_of(path, place)
            return event["event"] == "phase_changed" and bool(event["payload"].get("error"))
        case "lock":
            return path.exists()
    return place["record"] == "finding"


def line_of(path: Path, place: Json) -> Json:
    found: Json = json.loads(path.read_bytes().split(b"\n")[place["line"] - 1])
    return found


def test_the_table_is_that_of_the_document() -> None:
    """docs/diagnose.md lists the same kinds for the same codes; what follows from absence is not among them."""
    text = (PROJECT / "docs/diagnose.md").read_text().partition("| code | certain with |")[2].partition("## ")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    assert {row[1].strip(" `"): frozenset(row[2].strip().split(", ")) for row in rows} == CERTAIN_BY
    assert set(CERTAIN_BY) < set(CAUSES)
    assert not {"process_died", "stalled", "unknown", "poisoned_task", "grader_stuck", "two_writers"} & set(CERTAIN_BY)


# -- what the lock file notes


def record(run_dir: Path, **options: Any) -> RunRecorder:
    run = RunRecorder.create(run_dir, request=REQUEST, **options)
    run.append(ev.TasksLoaded(payload=ev.TasksLoadedPayload(total_tasks=1)))
    run.append(ev.TaskStarted(task_id="t"))
    return run


@pytest.mark.parametrize("ending", ["pass", "run.close()", "sys.exit(3)", "1 / 0"])
def test_a_program_that_ends_without_finish_leaves_a_note(ending: str, tmp_path: Path) -> None:
    """At exit as at close: not a death, and the note says when; the evidence is line 4 of the lock file."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.operations.test_certainty import record\n"
        f"run = record(Path(sys.argv[1]))\n{ending}\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], capture_output=True, cwd=PROJECT)
    report = diagnose_run(tmp_path / "run")
    cause = report["causes"][0]
    assert (report["outcome"], report["certainty"], report["life"]["state"]) == ("left", "certain", "left")
    assert (cause["code"], cause["certainty"]) == ("left_unfinished", "certain")
    left_at = read_witness(tmp_path / "run").left_at
    assert left_at is not None and left_at in cause["evidence"][0]["text"]
    assert cause["evidence"][0]["file"] == "progress.lock" and cause["evidence"][0]["line"] == 4
    assert any("compass-es close" in step for step in report["next_steps"])


def test_a_note_is_of_its_session_only(tmp_path: Path) -> None:
    """A run that is opened again is not left any more; a finished one never was; a closed one says what it was."""
    record(tmp_path / "a").close()
    with RunRecorder.open(tmp_path / "a") as run:
        assert read_witness(tmp_path / "a").left_at is None
        run.finish()
    assert diagnose_run(tmp_path / "a")["outcome"] == "completed" and read_witness(tmp_path / "a").left_at is None
    record(tmp_path / "b").close()
    assert close_run(tmp_path / "b", "failed").life.state == "left"
    first = diagnose_run(tmp_path / "b")["causes"][0]
    assert (first["code"], first["certainty"]) == ("left_unfinished", "certain")
    assert first["evidence"][0]["record"] == "end"


class FullDisk(FileSystem):
    """A file system on which nothing can be appended once it is full; what is there can be overwritten."""

    full = False

    def write(self, fd: int, data: Any) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data)


def test_a_loss_that_cannot_be_appended_is_noted_in_the_lock_file(tmp_path: Path) -> None:
    """How many events, and why; `diagnose` names both the loss and the full disk, with certainty."""
    run_dir, files = tmp_path / "run", FullDisk()
    record(run_dir).close()
    reporter = Recording(run_dir, "always", ProgressLine("none"), None)
    reporter._recorder = RunRecorder.attach(run_dir, durability="always", files=files)
    before = (run_dir / "progress.lock").stat().st_size
    files.full = True
    for number in range(3):
        reporter.emit("task_started", task_id=f"t{number}")
    reporter.close()
    note = read_witness(run_dir).note
    assert note is not None and note.lost == 3 and "No space left" in note.reason
    assert (run_dir / "progress.lock").stat().st_size == before == NOTE_OFFSET + NOTE_BYTES
    causes = {cause["code"]: cause for cause in diagnose_run(run_dir)["causes"]}
    for code in ("disk_full", "records_stopped"):
        assert causes[code]["certainty"] == "certain" and causes[code]["evidence"][0]["file"] == "progress.lock"
        assert "3 events could not be written" in causes[code]["message"]


def test_a_loss_that_the_stream_tells_is_not_noted_twice(tmp_path: Path) -> None:
    """Once there is room again `records_lost` is appended, and the note is taken back."""
    run_dir, files = tmp_path / "run", FullDisk()
    record(run_dir).close()
    reporter = Recording(run_dir, "always", ProgressLine("none"), None)
    reporter._recorder = RunRecorder.attach(run_dir, durability="always", files=files)
    files.full = True
    reporter.emit("task_started", task_id="t1")
    files.full = False
    reporter.emit("task_started", task_id="t2")
    reporter.close()
    note = read_witness(run_dir).note
    assert note is not None and note.lost == 0
    assert b'"records_lost"' in (run_dir / "progress.jsonl").read_bytes()


def torn_notes() -> Iterator[bytes]:
    whole = render_note(Note(writer="w", left_at="2026-01-01T00:00:00+00:00", lost=2, reason="\U0001f4be" * 400))
    yield from (whole[:n].ljust(NOTE_BYTES) for n in range(0, NOTE_BYTES - 1, 97))
    yield whole.replace(b'"lost":2', b'"lost":3')
    yield b"[" * NOTE_BYTES


def test_a_torn_note_is_not_believed() -> None:
    """Cut anywhere or changed: no note; a long reason is cut so that the note fits."""
    note = Note(writer="w", left_at="now", lost=2, reason="\U0001f4be" * 400)
    assert len(render_note(note)) == NOTE_BYTES
    found = parse_witness(b" " * NOTE_OFFSET + render_note(note)).note
    assert found is not None and found.lost == 2 and found.reason
    for content in torn_notes():
        if content.rstrip() != render_note(note).rstrip():
            assert parse_witness(b" " * NOTE_OFFSET + content).note is None
