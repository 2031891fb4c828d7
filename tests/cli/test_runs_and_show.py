"""`runs` and `show`: what is to be seen of runs at a glance."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.operations import status
from eventstore.operations.status import run_page
from eventstore.run import liveness
from eventstore.stream.lock import RunLock
from eventstore.stream.lock_file import render_writer
from eventstore.stream.recovery import boot_id
from tests.tools import interrupting
from tests.tools.commands import Command
from tests.tools.recorded import BIG, RUNS
from tests.tools.streams import plain_line, sealed_stream

RunCopy = Callable[[str], Path]


def test_runs_has_a_row_for_each_recorded_run(runs_root: Path, command: Command) -> None:
    """Keys are paths below the root, in order; counts are those of the stored snapshots."""
    assert command("runs", runs_root, "--json") == 0
    rows = command.document["runs"]
    assert [row["run_key"] for row in rows] == sorted(RUNS.values())
    for row in rows:
        stored = json.loads((runs_root / row["run_key"] / "progress.json").read_bytes())
        for name in ("run_id", "status", "total_tasks", "finished_tasks", "attempts_started", "model"):
            assert row[name] == stored[name], (row["run_key"], name)
        assert row["life"]["state"] == (
            "finished" if row["status"] == "completed" or row["status"] == "failed" else "silent"
        )
    assert {row["run_key"].split("/")[1]: row["retries"] for row in rows if row["retries"]} == {
        "p_429": 12,
        "r_kill_mid": 7,
        "r_retry2": 10,
    }
    assert command("runs", runs_root) == 0
    assert command.out.count("\n") >= len(rows) + 2 and "r_kill_mid" in command.out


def test_rows_are_the_same_from_several_processes(runs_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads a run changes nothing, and the order stays."""
    alone = list(status.run_rows(runs_root, print))
    monkeypatch.setattr(status, "SHARED_BYTES", 0)
    assert list(status.run_rows(runs_root, print, processes=3)) == alone


INTERRUPTED = """
import sys, time
from pathlib import Path
from eventstore.operations.pool import map_in_order
def nap(name):
    Path(sys.argv[1], name).touch()
    time.sleep(60)
try:
    list(map_in_order(nap, ["a", "b"], 2))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_is_answered_once_and_by_no_other_process(tmp_path: Path) -> None:
    """A terminal sends it to all of them; only the first says a word."""
    process = interrupting.start(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    interrupting.wait_until(process, lambda: len(list(tmp_path.iterdir())) == 2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30) == ("interrupted\n", "")


def test_runs_accepts_a_run_an_empty_folder_and_wrong_paths(tmp_path: Path, runs_root: Path, command: Command) -> None:
    """PATH may be a run itself; nothing found is said in words, a wrong path is exit 3."""
    assert command("runs", runs_root / RUNS["r_ok"], "--json") == 0
    assert [row["run_key"] for row in command.document["runs"]] == ["r_ok"]
    assert command("runs", tmp_path) == 3 and "no run directory" in command.err and command.out == ""
    assert command("runs", tmp_path, "--json") == 3 and "no run directory" in command.document["error"]["message"]
    assert command("runs", tmp_path / "nowhere") == 3
    assert command("runs") == 2


def test_one_bad_run_never_stops_the_others(run_dir: RunCopy, command: Command) -> None:
    """Damaged, empty, a link loop, a FIFO for a stream, a name that is no UTF-8, one called run_id=x: all answered."""
    good = run_dir("r_ok")
    root = good.parent.parent
    run_dir("r_kill_early")
    (root / "loop").mkdir()
    (root / "loop" / "again").symlink_to(root / "loop")
    for name, content in (("damaged", b"\0\n{}\n"), ("empty", b""), ("run_id=x", plain_line(0) + b"\n")):
        (root / name).mkdir()
        (root / name / "progress.jsonl").write_bytes(content)
    odd = os.fsencode(root) + b"/caf\xe9"
    os.mkdir(odd)
    shutil.copy(good / "progress.jsonl", os.path.join(odd, b"progress.jsonl"))
    (root / "fifo").mkdir()
    os.mkfifo(root / "fifo" / "progress.jsonl")
    (root / "broken").mkdir()
    (root / "broken" / "run_info.json").write_text('{"run_id": ')
    assert command("runs", root, "--json") == 0
    rows = {row["run_key"]: row for row in command.document["runs"]}
    assert len(rows) == 8
    assert rows["run_id=x"]["events"] == 1 and rows["damaged"]["verdicts"] == {"corrupt_line": 2}
    assert rows["damaged"]["life"]["state"] == "damaged" and rows["empty"]["events"] == 0
    assert "is a FIFO" in rows["fifo"]["problem"] and "not JSON" in rows["broken"]["problem"]
    assert "link to a folder above" in command.err and "FIFO" in command.err
    assert command("runs", root) == 0


@pytest.mark.parametrize("name", [*RUNS, BIG])
def test_show_gives_the_members_of_progress_json(name: str, run_dir: RunCopy, command: Command) -> None:
    """And life, phases, slowest, in_flight beside them."""
    run = run_dir(name)
    assert command("show", run, "--json") == 0
    page = command.document
    stored = json.loads((run / "progress.json").read_bytes())
    assert {key: page[key] for key in stored} == stored
    assert page["life"]["state"] in ("finished", "silent") and page["life"]["evidence"]
    if stored["attempts_started"]:
        assert page["phases"] and page["slowest"]
    assert command("show", run) == 0 and page["run_id"] in command.out


def test_show_of_a_killed_run_says_what_was_in_flight(run_dir: RunCopy, command: Command) -> None:
    """The tasks that were running, oldest first, with the phase they were in."""
    page = run_page(run_dir("r_kill_mid"))
    assert len({flight.task_id for flight in page.in_flight}) == page.running_tasks == 6
    assert len(page.in_flight) == sum(phase.running for phase in page.phases) == 11
    assert page.in_flight[0].task_id == "arith-009" and page.in_flight[0].phase == "retry_wait"


def test_show_at_an_earlier_moment(run_dir: RunCopy, command: Command) -> None:
    """A run's page as it was; whether a writer lives is asked of now only."""
    run = run_dir("r_ok")
    assert command("show", run, "--at-event", "8", "--json") == 0
    assert command.document["status"] == "running" and command.document["life"] is None
    assert command.document["events"] == 8 and command.document["error"] is None
    assert command("show", run, "--at-event", "8") == 0


def test_show_of_a_run_that_never_had_an_event(run_dir: RunCopy, command: Command) -> None:
    """run_info.json and run.log only: status and error are those of the file."""
    run = run_dir("p_load")
    (run / "progress.jsonl").unlink()
    (run / "progress.json").unlink()
    assert command("show", run, "--json") == 0
    assert command.document["status"] == "failed" and "not readable" in command.document["error"]
    assert command("show", run) == 0 and "dataset archive" in command.out


def test_hostile_names_are_shown_harmless(tmp_path: Path, command: Command) -> None:
    """Task ids, phases and errors with escape codes reach the terminal as visible text."""
    hostile = "\x1b[2J\x1b]0;x\x07\u202e\x9b\r\nt"
    lines = [plain_line(n, task_id=f"{hostile}{n}", phase=hostile, category=hostile) for n in range(3)]
    lines.append(plain_line(9, event="run_finished", status=hostile, payload={"error": hostile}))
    (tmp_path / "progress.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    calls = [[name, tmp_path, *more] for name in ("show", "runs") for more in ([], ["--json"])]
    for arguments in calls:
        assert command(*arguments) == 0
        assert not set("\x1b\x07\x9b\u202e\r") & set(command.out + command.err)


# -- life, with its evidence


def test_life_of_a_writer_of_ours(tmp_path: Path) -> None:
    """Held lock: live. Free lock: dead, if the writer was on this host; else nothing can be known."""
    (tmp_path / "progress.jsonl").write_bytes(b"".join(sealed_stream(2)))
    writer = {"id": "w", "host": socket.gethostname(), "pid": 1, "boot": boot_id(), "opened_at": "then"}
    (tmp_path / "progress.lock").write_bytes(render_writer(writer))
    with RunLock(tmp_path):
        assert liveness.life_of(tmp_path).state == "live"
        assert liveness.life_of(tmp_path, ended="it says so").state == "finished"
    assert liveness.life_of(tmp_path).state == "dead"
    (tmp_path / "progress.lock").write_bytes(render_writer(writer | {"boot": "another"}))
    assert "started again" in liveness.life_of(tmp_path).evidence[0]
    (tmp_path / "progress.lock").write_bytes(render_writer(writer | {"host": "elsewhere"}))
    found = liveness.life_of(tmp_path)
    assert found.state == "silent" and "another machine" in found.evidence[0]


def test_life_without_a_lock(tmp_path: Path) -> None:
    """Young file and young last event: live. A copied run with times in the future: not young."""
    stream = tmp_path / "progress.jsonl"
    stream.write_bytes(plain_line(0) + b"\n")
    now = stream.stat().st_mtime

    def name(age: float, last: float | None, damage: str | None = None) -> str:
        return liveness.life_of(
            tmp_path, damage=damage, last_timestamp=last, clock=lambda: now + age, open_paths=frozenset()
        ).state

    assert name(10, now) == "live"
    assert name(10, now - 100) == "silent" and name(70, now + 60) == "silent" and name(10, None) == "silent"
    assert name(1, now + 3600) == "silent"
    assert name(3600, now, "a line is damaged") == "damaged"
