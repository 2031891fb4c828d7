"""No statement without its evidence: lives, ends and agreements are told from what was seen, and two commands agree."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.operations.close import evidence_of
from eventstore.stream.lock import RunLock
from tests.tools import breaking
from tests.tools.commands import Command
from tests.tools.failures import Copy, edit_info, events_of, write_events


def results_of(run: Path) -> list[Path]:
    return sorted(run.glob("details/normal/*/attempt-1/result.json"))


def in_two_states(run: Path) -> None:
    task = results_of(run)[0].parents[1]
    shutil.copytree(task, run / "details/error" / task.name)


def without_beginning(run: Path) -> None:
    """The first lines are in a file beside the stream."""
    lines = (run / "progress.jsonl").read_bytes().splitlines(keepends=True)
    (run / "progress.jsonl.1").write_bytes(b"".join(lines[:10]))
    (run / "progress.jsonl").write_bytes(b"".join(lines[10:]))


def interleaved(run: Path) -> None:
    """A second evaluation of the same run id writes between the lines of the first."""
    events = events_of(run)
    doubled = [copy for event in events for copy in (event, event | {"request_key": "other"})]
    write_events(run, doubled)


def not_a_number(run: Path) -> None:
    """The headline value of metrics.json is NaN."""
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["series"][0]["value"] = float("nan")
    (run / "metrics.json").write_text(json.dumps(metrics))


BROKEN: dict[str, Callable[[Path], object]] = {
    "a result of null": lambda run: results_of(run)[0].write_text("null"),
    "a result cut off": lambda run: results_of(run)[0].write_bytes(results_of(run)[0].read_bytes()[:60]),
    "a result missing": lambda run: results_of(run)[0].unlink(),
    "a task in two states": in_two_states,
    "NaN as the score": not_a_number,
    "two runs in one stream": interleaved,
    "the beginning missing": without_beginning,
    "a folder in the place of task.json": lambda run: breaking.as_directory_of(
        run, str(results_of(run)[0].parents[1].relative_to(run) / "task.json")
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_verify_calls_an_error_diagnose_does_not_call_fine(name: str, run_dir: Copy, command: Command) -> None:
    """The same facts and the same exit code; each error is named in the evidence, with its file."""
    run = run_dir("r_ok")
    assert command("diagnose", run) == 0 and command("verify", run) == 0
    BROKEN[name](run)
    assert command("verify", run, "--json") == 1
    assert command("diagnose", run, "--json") == 1
    report = command.document
    assert report["score"]["usable"] is False or name != "NaN as the score"
    assert any(cause["certainty"] == "certain" for cause in report["causes"])
    for cause in report["causes"]:
        for evidence in cause["evidence"]:
            assert not Path(evidence["file"]).is_absolute()
    assert command("diagnose", run) == 1 and "no cause of trouble found" not in command.out


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"\x1f\x8b\x08\x00" + b"\xff" * 100])
def test_a_stream_that_lost_every_event_is_an_error_everywhere(content: bytes, run_dir: Copy, command: Command) -> None:
    """Emptied, zeroed, another file's bytes: replay refuses, and nobody speaks of a terminal event in the stream."""
    run = run_dir("r_ok")
    (run / "progress.jsonl").write_bytes(content)
    before = {name: (run / name).read_bytes() for name in ("progress.json", "run_info.json")}
    assert command("replay", run) == 1
    assert "the run's events are lost" in command.err and "agree" not in command.err
    assert command("replay", run, "--force") == 1
    assert {name: (run / name).read_bytes() for name in before} == before
    assert command("verify", run, "--json") == 1
    assert "events_lost" in {finding["code"] for finding in command.document["findings"]}
    assert command("diagnose", run, "--json") == 1
    report = command.document
    assert "records_lost" in {cause["code"] for cause in report["causes"]}
    assert report["status"] == "completed" and "run_info.json says completed" in report["life"]["evidence"][0]
    assert command("show", run, "--json") == 0 and command.document["life"] == report["life"]


def test_a_run_that_failed_before_its_first_event_is_called_that(run_dir: Copy, command: Command) -> None:
    """Nothing is lost where nothing was; there is nothing to rebuild, and no advice that would be refused."""
    run = run_dir("p_load")
    for name in ("progress.jsonl", "progress.json"):
        (run / name).unlink()
    edit_info(run, error=None)
    assert command("replay", run) == 0 and "no event was recorded" in command.err and "agree" not in command.err
    assert command("verify", run) == 0
    assert command("diagnose", run, "--json") == 1
    assert "ended before its first event" in command.document["causes"][0]["message"]
    edit_info(run, status=None)
    assert command("diagnose", run, "--json") == 1
    assert not [step for step in command.document["next_steps"] if "close" in step]


@pytest.mark.parametrize("status", ["success", "COMPLETED"])
def test_a_status_that_nobody_knows_is_an_end(status: str, run_dir: Copy, command: Command) -> None:
    """Not a death: the evidence says what is stored, and that the status is not known."""
    run = run_dir("r_ok")
    write_events(run, [event for event in events_of(run) if event["event"] != "run_finished"])
    edit_info(run, status=status)
    assert command("diagnose", run, "--json") == 1
    report = command.document
    assert report["outcome"] == "unknown" and report["status"] == status and report["life"]["state"] == "finished"
    assert f"run_info.json says {status}, a status that is not known" in report["life"]["evidence"][0]
    assert "process_died" not in {cause["code"] for cause in report["causes"]}


def test_what_was_open_at_the_end_is_called_that(run_dir: Copy, command: Command) -> None:
    """A run that timed out with attempts open: the same ones in show, watch and diagnose, in flight at the end."""
    run = run_dir("r_kill_mid")
    events = events_of(run)
    last = events[-1]
    end = last | {"event": "run_finished", "status": "timed_out", "task_id": None, "attempt": None, "phase": None}
    assert command("show", run, "--json") == 0
    before = command.document["in_flight"]
    write_events(run, [*events, end | {"payload": {}, "category": None}])
    assert command("show", run, "--json") == 0
    after, ended = command.document["in_flight"], command.document["ended"]
    assert ended and [(f["task_id"], f["attempt"], f["phase"]) for f in after] == [
        (f["task_id"], f["attempt"], f["phase"]) for f in before
    ]
    assert command("diagnose", run, "--json") == 1 and len(command.document["in_flight"]) == len(after) == 11
    for words in (["show", run], ["diagnose", run]):
        command(*words)
        assert "in flight at the end: 11" in command.out


def test_a_folder_that_was_only_begun_lets_a_closed_run_verify_clean(run_dir: Copy, command: Command) -> None:
    """The process was killed between making the folder and writing task.json: a warning."""
    run = run_dir("r_kill_mid")
    (run / "details/running/arith-015--0").mkdir()
    assert command("close", run, "--status", "failed") == 0
    assert command("verify", run, "--json") == 0
    assert "task_begun" in {finding["code"] for finding in command.document["findings"]}


def test_a_held_lock_was_not_let_go(tmp_path: Path) -> None:
    """Facts about one writer don't contradict each other."""
    import os
    import socket

    from eventstore.stream.lock_file import render_writer
    from eventstore.stream.recovery import boot_id

    (tmp_path / "progress.jsonl").write_bytes(b"")
    writer = {"host": socket.gethostname(), "pid": os.getpid(), "boot": boot_id(), "opened_at": "2099-01-01T00:00:00Z"}
    (tmp_path / "progress.lock").write_bytes(render_writer(writer | {"id": "w"}))
    with RunLock(tmp_path):
        held = " ".join(evidence_of(tmp_path, None, 0.0))
    assert "the lock is held" in held and "is still there" in held and "let the lock go" not in held
    assert "let the lock go" in " ".join(evidence_of(tmp_path, None, 0.0))


def test_a_password_in_a_stored_error_is_masked(run_dir: Copy, command: Command) -> None:
    """In every command that shows the error, whatever the format."""
    run = run_dir("r_surrogate")
    write_events(run, [event for event in events_of(run) if event["event"] != "run_finished"])
    edit_info(run, error="no answer from https://bob:pw-Zx81kQ@host.invalid")
    for words in (["show"], ["show", "--json"], ["runs", "--json"], ["watch", "--once", "--json"], ["diagnose"]):
        assert command(words[0], run, *words[1:]) in (0, 1)
        assert "pw-Zx81kQ" not in command.out + command.err and "host.invalid" in command.out, words
        assert words[-1] != "--json" or json.loads(command.out)
