"""`compass-es replay`: rebuilds what a crash left behind, and never takes truth away."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore.operations import replay
from eventstore.operations.replay import Moment, replay_run
from eventstore.stream.lock import RunLock
from tests.tools.commands import Command
from tests.tools.recorded import BIG, RUNS
from tests.tools.streams import plain_line

RunCopy = Callable[[str], Path]
KILLED = ["r_kill_early", "r_kill_mid", "r_sigterm"]
SNAPSHOTS = ("progress.json", "run_info.json")


def contents(run: Path) -> dict[str, bytes]:
    """Everything in a run directory, by path."""
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def load(path: Path) -> Any:
    return json.loads(path.read_bytes())


@pytest.mark.parametrize("name", [*RUNS, BIG])
def test_intact_run_needs_nothing_and_is_told_so(name: str, run_dir: RunCopy, command: Command) -> None:
    """On a run whose snapshots agree with its stream nothing is written."""
    run = run_dir(name)
    before = contents(run)
    assert command("replay", run) == 0
    assert "nothing to do" in command.err
    assert command("replay", run, "--json") == 0
    assert command.document["changed"] == command.document["written"] == []
    assert contents(run) == before


@pytest.mark.parametrize("name", KILLED)
@pytest.mark.parametrize("harm", ["deleted", "truncated", "emptied", "nul"])
def test_killed_run_gets_its_snapshots_back(name: str, harm: str, run_dir: RunCopy, command: Command) -> None:
    """Deleted or half-written snapshots are rebuilt; what was there is kept; a second replay finds nothing to do."""
    run = run_dir(name)
    stored = {file: load(run / file) for file in SNAPSHOTS}
    for file in SNAPSHOTS:
        content = (run / file).read_bytes()
        left = {"truncated": content[: len(content) // 2], "emptied": b"", "nul": b"\0" * 512}
        if harm == "deleted":
            (run / file).unlink()
        else:
            (run / file).write_bytes(left[harm])
    assert command("replay", run, "--json") == 0
    assert command.document["written"] == list(SNAPSHOTS)
    rebuilt = {file: load(run / file) for file in SNAPSHOTS}
    assert rebuilt["progress.json"].pop("elapsed_seconds") == pytest.approx(
        stored["progress.json"].pop("elapsed_seconds"), abs=0.011
    )
    assert rebuilt["progress.json"] == stored["progress.json"]
    assert rebuilt["run_info.json"].get("resolved_execution_plans") == stored["run_info.json"].get(
        "resolved_execution_plans"
    )
    assert "status" not in rebuilt["run_info.json"]
    assert rebuilt["run_info.json"]["request"]["benchmark"] == {"id": "toy_arith"}
    if harm != "deleted":
        assert (run / "progress.json.replaced-1").exists() and (run / "run_info.json.replaced-1").exists()
    assert command("replay", run) == 0 and "nothing to do" in command.err
    assert not list(run.glob(".tmp.*")) and not (run / "progress.lock").exists()


@pytest.mark.parametrize("name", [*KILLED, "r_ok", "r_retry2"])
def test_snapshot_one_event_behind_is_brought_up(name: str, run_dir: RunCopy, command: Command) -> None:
    """A kill between the line and the snapshot leaves the snapshot one event behind, to the millisecond."""
    run = run_dir(name)
    stored = load(run / "progress.json")
    behind = replay_run(run, moment=Moment(events=replay_run(run, write=False).events - 1)).snapshots
    (run / "progress.json").write_bytes(behind.rendered_progress)
    assert command("replay", run) == 0 and "written: progress.json" in command.err
    rebuilt = load(run / "progress.json")
    assert abs(rebuilt.pop("elapsed_seconds") - stored.pop("elapsed_seconds")) < 0.0015
    assert rebuilt == stored


def test_dry_run_never_writes(run_dir: RunCopy, command: Command) -> None:
    """It tells what would change."""
    run = run_dir("r_kill_mid")
    (run / "progress.json").unlink()
    before = contents(run)
    assert command("replay", run, "--dry-run") == 0 and "would change: progress.json" in command.err
    assert command("replay", run, "--dry-run", "--json") == 0
    assert command.document["changed"] == ["progress.json"] and command.document["written"] == []
    assert contents(run) == before


def test_terminal_event_reaches_run_info(run_dir: RunCopy, command: Command) -> None:
    """Disk full: the stream has the end of the run, both files still say it is going."""
    run = run_dir("r_surrogate")
    stored = load(run / "run_info.json")
    going = {name: value for name, value in stored.items() if name not in ("status", "finished_at", "error")}
    (run / "run_info.json").write_text(json.dumps(going))
    assert command("replay", run) == 0
    rebuilt = load(run / "run_info.json")
    assert rebuilt["status"] == "failed" and rebuilt["error"] == stored["error"]
    assert rebuilt["finished_at"].endswith("+00:00")


def test_stored_facts_stay_unless_the_stream_proves_more(run_dir: RunCopy, command: Command) -> None:
    """Unknown members, provenance and the file's own end time are not the stream's to take away."""
    run = run_dir("r_ok")
    info = load(run / "run_info.json") | {"house_note": {"keep": [1, None]}, "finished_at": "2026-11-29T14:30:26+00:00"}
    (run / "run_info.json").write_text(json.dumps(info))
    (run / "progress.json").unlink()
    assert command("replay", run) == 0
    assert load(run / "run_info.json") == info
    info["status"] = "failed"
    (run / "run_info.json").write_text(json.dumps(info))
    assert command("replay", run) == 0
    corrected = load(run / "run_info.json")
    assert corrected["status"] == "completed" and corrected["finished_at"] == "2026-11-29T14:30:24+00:00"


def test_status_written_before_the_terminal_event_stays(run_dir: RunCopy, command: Command) -> None:
    """AgentCompass writes run_info.json's end first; a kill between the two leaves the truth in the file only."""
    run = run_dir("r_ok")
    stream = run / "progress.jsonl"
    stream.write_bytes(b"".join(stream.read_bytes().splitlines(keepends=True)[:-1]))
    (run / "progress.json").unlink()
    before = (run / "run_info.json").read_bytes()
    assert command("replay", run) == 0
    assert (run / "run_info.json").read_bytes() == before
    assert load(run / "progress.json")["status"] == "summarizing"


def test_snapshot_ahead_of_the_stream_is_not_taken_back(run_dir: RunCopy, command: Command) -> None:
    """After a power loss the snapshot can know more than the stream: exit 1, nothing written, unless forced."""
    run = run_dir("r_kill_mid")
    stream = run / "progress.jsonl"
    stream.write_bytes(b"".join(stream.read_bytes().splitlines(keepends=True)[:-60]))
    before = contents(run)
    assert command("replay", run) == 1 and "ahead of the stream" in command.err
    assert contents(run) == before
    assert command("replay", run, "--force") == 0
    assert load(run / "progress.json")["attempts_started"] < json.loads(before["progress.json"])["attempts_started"]
    assert (run / "progress.json.replaced-1").read_bytes() == before["progress.json"]


def test_damaged_stream_is_refused_unless_forced(run_dir: RunCopy, command: Command) -> None:
    """A stream that can't be trusted changes no snapshot by itself."""
    run = run_dir("r_kill_mid")
    stream = run / "progress.jsonl"
    lines = stream.read_bytes().splitlines(keepends=True)
    stream.write_bytes(b"".join([*lines[:7], b"\0" * 30 + b"\n", *lines[8:]]))
    (run / "progress.json").unlink()
    assert command("replay", run, "--json") == 1
    assert command.document["verdicts"]["corrupt_line"] == 1
    assert command.document["written"] == [] and "damaged" in command.document["refusals"][0]
    assert command("replay", run, "--force", "--json") == 0 and command.document["written"] == ["progress.json"]


def test_live_writer_is_left_alone(run_dir: RunCopy, command: Command) -> None:
    """While somebody holds the lock, or has the stream open, or wrote a moment ago, nothing is written."""
    run = run_dir("r_kill_mid")
    (run / "progress.json").unlink()
    with RunLock(run):
        assert command("replay", run) == 1 and "the writer lives: the lock is held" in command.err
    (run / "progress.lock").unlink()
    holder = subprocess.Popen(["sleep", "60"], stdin=(run / "progress.jsonl").open("rb"))
    try:
        time.sleep(0.05)
        assert command("replay", run) == 1 and "a process of this host has progress.jsonl open" in command.err
    finally:
        holder.kill()
        holder.wait()
    last = load_events(run)[-1]["timestamp"]
    os.utime(run / "progress.jsonl", (last, last))
    assert replay_run(run, clock=lambda: last + 30).refusals[0].startswith("the writer lives")
    assert replay_run(run, clock=lambda: last + 61).written == ["progress.json"]


def load_events(run: Path) -> list[Any]:
    return [json.loads(line) for line in (run / "progress.jsonl").read_bytes().splitlines()]


def test_lock_that_stays_held_is_an_answer(run_dir: RunCopy, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that comes between the check and the write wins; replay says who it is."""
    run = run_dir("r_kill_mid")
    (run / "progress.json").unlink()
    monkeypatch.setattr(replay, "_life", lambda *_: None)
    with RunLock(run):
        assert command("replay", run, "--json") == 1
        assert command.document["error"]["kind"] == "locked"


def test_older_schema_is_never_rewritten_in_place(run_dir: RunCopy, command: Command, tmp_path: Path) -> None:
    """A v2 record is printed or written elsewhere, and no schema_version is raised."""
    run = run_dir("r_surrogate")
    info = {"schema_version": "agentcompass.run_info.v2", "run_id": "r_surrogate"}
    (run / "run_info.json").write_text(json.dumps(info))
    assert command("replay", run, "--force") == 1 and "older schema" in command.err
    assert load(run / "run_info.json") == info
    assert command("replay", run, "--out", tmp_path / "out") == 0
    assert load(tmp_path / "out" / "run_info.json")["schema_version"] == "agentcompass.run_info.v2"
    assert load(tmp_path / "out" / "run_info.json")["status"] == "failed"


def test_reanalysis_stream_rebuilds_progress_and_leaves_run_info(run_dir: RunCopy, command: Command) -> None:
    """An analysis-only stream is recognised: progress.json is its own, run_info.json describes the evaluation."""
    run = run_dir("r_evalerr_reanalysis")
    before = contents(run)
    (run / "progress.json").unlink()
    assert command("replay", run) == 0 and "re-analysis" in command.err
    assert contents(run).keys() == before.keys() and (run / "run_info.json").read_bytes() == before["run_info.json"]
    (run / "run_info.json").unlink()
    assert command("replay", run) == 0
    assert not (run / "run_info.json").exists()


def test_run_that_failed_before_its_first_event(run_dir: RunCopy, command: Command) -> None:
    """Only run_info.json and run.log: an answer, not an error."""
    run = run_dir("p_load")
    for name in ("progress.json", "progress.jsonl"):
        (run / name).unlink()
    assert command("replay", run, "--json") == 0
    document = command.document
    assert document["events"] == 0 and document["progress"] is None and document["run_info"]["status"] == "failed"


def test_moments_are_printed_and_never_written(run_dir: RunCopy, command: Command) -> None:
    """Time travel by number and by time; the state is what the first events alone give."""
    run = run_dir("r_kill_mid")
    (run / "progress.json").unlink()
    before = contents(run)
    assert command("replay", run, "--at-event", "3") == 0
    assert command.document["total_tasks"] == 60 and command.document["running_tasks"] == 0
    assert command("replay", run, "--at-event", "0", "--json") == 0 and command.document["progress"] is None
    assert command("replay", run, "--at-event", "400", "--json") == 0 and command.document["events"] == 400
    assert command("replay", run, "--at-event", "401") == 2 and "the run has 400 events" in command.err
    third = load_events(run)[2]["timestamp"]
    assert command("replay", run, "--at-time", third, "--json") == 0 and command.document["events"] == 3
    assert command("replay", run, "--at-time", "2001-01-01", "--json") == 0 and command.document["events"] == 0
    assert command("replay", run, "--at-time", "2099-01-01T00:00:00Z", "--json") == 0
    assert command.document["events"] == 400
    assert contents(run) == before


def test_moment_of_a_finished_run_does_not_know_its_end(run_dir: RunCopy, command: Command) -> None:
    """What the files say of the end, of metrics and of later plans is not told of an earlier moment."""
    run = run_dir("r_ok")
    assert command("replay", run, "--at-event", "12", "--json") == 0
    info = command.document["run_info"]
    assert info.keys().isdisjoint({"status", "finished_at", "metric_artifacts"})
    assert list(info["resolved_execution_plans"]) == ["arith-000"]


def test_time_runs_backwards_and_the_last_record_in_file_order_counts(run_dir: RunCopy, command: Command) -> None:
    """p_clock's clock stepped back two hours: `--at-time` goes up to the last record at or before T."""
    run = run_dir("p_clock")
    events = load_events(run)
    low = min(event["timestamp"] for event in events)
    expected = max(n for n, event in enumerate(events, 1) if event["timestamp"] <= low)
    assert command("replay", run, "--at-time", repr(low), "--json") == 0
    assert command.document["events"] == expected


def test_kill_during_replay_leaves_old_or_new_files(run_dir: RunCopy, tmp_path: Path) -> None:
    """SIGKILL at random moments of many replays: each file is whole, the old or the new, and replay works again."""
    run = run_dir(BIG)
    whole = {file: (run / file).read_bytes() for file in SNAPSHOTS}
    chance = random.Random(11)
    load_it = "from eventstore.operations.replay import replay_run"
    code = f"import sys; {load_it}; print('go', flush=True); replay_run(sys.argv[1])"
    for _ in range(12):
        for file in SNAPSHOTS:
            (run / file).write_bytes(b"{}")
        process = subprocess.Popen([sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"go\n"
        time.sleep(chance.uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for file in SNAPSHOTS:
            content = (run / file).read_bytes()
            assert content == b"{}" or json.loads(content).keys() >= {"run_id"}
    replay_run(run)
    assert load(run / "progress.json").keys() == json.loads(whole["progress.json"]).keys()


def test_wrong_paths_get_words_and_exit_3(tmp_path: Path, command: Command) -> None:
    """Nowhere, a file, an empty folder: a sentence with the path."""
    assert command("replay", tmp_path / "nowhere") == 3 and "there is no such folder" in command.err
    (tmp_path / "file").write_text("x")
    assert command("replay", tmp_path / "file") == 3 and "is a file" in command.err
    (tmp_path / "empty").mkdir()
    assert command("replay", tmp_path / "empty", "--json") == 3
    assert command.document["error"]["kind"] == "unreadable"
    assert command.document["error"]["path"] == str(tmp_path / "empty")


def test_wrong_calls_exit_2(run_dir: RunCopy, command: Command) -> None:
    """No path, a negative event, two moments, a time that is none."""
    run = run_dir("r_ok")
    assert command("replay") == 2
    assert command("replay", run, "--at-event", "-1") == 2
    assert command("replay", run, "--at-event", "1", "--at-time", "2026-01-01", "--json") == 2
    assert command.document["error"]["kind"] == "usage"
    assert command("replay", run, "--at-time", "soon") == 2 and "is no time" in command.err
    assert command("replay", run, "--out", run) == 2
    assert command("no-such-command") == 2


def test_folder_that_can_not_be_written(run_dir: RunCopy, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk or a read-only folder is an error with the path, and nothing half-written stays."""
    run = run_dir("r_kill_mid")
    (run / "progress.json").unlink()
    before = contents(run)

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eventstore.stream.filesystem.FileSystem.write_all", refuse)
    assert command("replay", run) == 3 and "No space left on device" in command.err
    assert contents(run) == before


def test_escape_codes_in_records_never_reach_the_terminal(run_dir: RunCopy, command: Command) -> None:
    """Text from records is shown with its control characters made visible."""
    run = run_dir("r_ok")
    with (run / "progress.jsonl").open("ab") as stream:
        hostile = "\x1b]0;owned\x07\x9b31m\u202eevil"
        stream.write(plain_line(1, run_id="r_ok", task_id=hostile, timestamp=1795962625.5) + b"\n")
        stream.write(plain_line(2, run_id=hostile) + b"\n")
    assert command("replay", run) == 1
    assert command("replay", run, "--json", "--force") == 0
    shown = command.out + command.err
    assert not any(character in shown for character in "\x1b\x07\x9b\u202e")
    assert hostile in command.document["progress"]["active_tasks"]


def test_lock_is_taken_while_writing(run_dir: RunCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer can't come in between; the lock file goes away again on a directory that had none."""
    run = run_dir("r_kill_mid")
    (run / "progress.json").unlink()
    seen = []

    def spy(path: Path, content: bytes, **how: object) -> None:
        fd = os.open(run / "progress.lock", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(fd)
        seen.append(path.name)

    monkeypatch.setattr(replay, "replace_file", spy)
    replay_run(run)
    assert seen == ["progress.json"] and not (run / "progress.lock").exists()
