"""`close`: a run that died gets its terminal event, from somebody who looked whether its writer lives."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from eventstore.errors import DamagedError, LockedError, RefusedError, UsageError
from eventstore.format import codec
from eventstore.format.events import RunFinished, RunStarted, TaskStarted
from eventstore.history.sql import questions
from eventstore.history.sql.access import CatalogChoice, open_history
from eventstore.history.sql.ask import ask
from eventstore.operations.close import close_run, evidence_of, process_started_at
from eventstore.operations.diagnose.diagnose import diagnose_run
from eventstore.operations.status import run_page
from eventstore.stream.lock_file import render_writer
from eventstore.stream.log import EventLog
from eventstore.stream.recovery import boot_id
from eventstore.stream.scan import scan
from tests.tools.commands import Command


def last_event(run: Path) -> tuple[str, str | None, dict[str, object]]:
    event = list(scan(run))[-1].event
    return type(event).__name__, event.status, codec.payload_members(event)


def dead_run(tmp_path: Path, *, pid: int = 2**22 + 1, host: str | None = None, boot: str | None = None) -> Path:
    """A sealed stream whose writer's record can be chosen."""
    run = tmp_path / "r"
    run.mkdir()
    with EventLog.open(run, run_id="r", clock=lambda: 1000.0) as log:
        log.append(RunStarted())
        log.append(TaskStarted(task_id="t"))
    writer = {"id": "w", "host": host or socket.gethostname(), "pid": pid, "boot": boot_id() if boot is None else boot}
    with open(run / "progress.lock", "r+b") as lock:
        lock.write(render_writer(writer | {"opened_at": "2026-03-01T12:00:00+00:00", "version": "0"}))
    return run


def test_a_run_that_died_before_its_first_event_gets_its_beginning_too(
    run_dir: Callable[[str], Path], command: Command
) -> None:
    """AgentCompass makes run_info.json and an empty stream first: what it says of the start goes into the stream."""
    run = run_dir("r_kill_early")
    (run / "progress.jsonl").write_bytes(b"")
    (run / "progress.json").unlink(missing_ok=True)
    info = json.loads((run / "run_info.json").read_text())
    assert command("close", run, "--status", "failed") == 0, command.err
    started, finished = (record.event for record in scan(run))
    assert isinstance(started, RunStarted) and started.payload.request == info["request"]
    assert started.timestamp == datetime.fromisoformat(info["started_at"]).timestamp()
    assert (finished.status, finished.run_id) == ("failed", info["run_id"])
    command("verify", run, "--json")
    assert [found for found in command.document["findings"] if found["severity"] == "error"] == []


def test_a_killed_run_gets_its_end(run_dir: Callable[[str], Path], command: Command) -> None:
    """A run of AgentCompass that was killed: run_finished with the reason, both snapshots rebuilt, exit 0."""
    run = run_dir("r_kill_mid")
    before = (run / "progress.jsonl").read_bytes()
    assert command("close", run, "--status", "failed", "--error", "the machine lost power", "--json") == 0
    document = command.document
    assert (
        document["run_id"] == "r_kill_mid" and document["status"] == "failed" and document["life"]["state"] == "silent"
    )
    name, status, payload = last_event(run)
    assert (name, status, payload["error"]) == ("RunFinished", "failed", "the machine lost power")
    assert payload["closed"] == {"life": "silent", "evidence": document["life"]["evidence"]}
    assert (run / "progress.jsonl").read_bytes().startswith(before)
    assert json.loads((run / "progress.json").read_text())["status"] == "failed"
    info = json.loads((run / "run_info.json").read_text())
    assert info["status"] == "failed" and info["error"] == "the machine lost power"
    assert command("replay", run) == 0 and "nothing to do" in command.err


def test_a_run_ends_once(tmp_path: Path, command: Command) -> None:
    """A second call is refused and changes nothing (mlflow#7078, aimhubio/aim#3175: "close" without effect)."""
    run = dead_run(tmp_path)
    assert command("close", run, "--status", "cancelled") == 0
    assert "closed as cancelled" in command.err and "there is no process" in command.err
    before = (run / "progress.jsonl").read_bytes()
    assert command("close", run, "--status", "completed") == 1 and "terminal event, cancelled" in command.err
    assert (run / "progress.jsonl").read_bytes() == before


def test_a_finished_run_is_left_alone(run_dir: Callable[[str], Path]) -> None:
    """PrefectHQ/prefect#21932: a run that has completed is never turned into a crashed one."""
    with pytest.raises(RefusedError, match="terminal event, completed"):
        close_run(run_dir("r_ok"), "failed")


def test_a_run_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    """While the lock is held nobody else ends the run (aimhubio/aim#2270 and its kind)."""
    run = tmp_path / "r"
    run.mkdir()
    with EventLog.open(run, run_id="r") as log:
        log.append(RunStarted())
        with pytest.raises((RefusedError, LockedError), match=f"process {os.getpid()}"):
            close_run(run, "failed")
        log.append(RunFinished(status="completed"))


def test_a_young_run_without_a_lock_may_be_written(run_dir: Callable[[str], Path]) -> None:
    """AgentCompass takes no lock: a stream and a last event younger than a minute mean a writer."""
    run = run_dir("r_kill_mid")
    last = list(scan(run))[-1].event.timestamp
    os.utime(run / "progress.jsonl", (last, last))
    with pytest.raises(RefusedError, match="may live"):
        close_run(run, "failed", clock=lambda: last + 30)
    assert close_run(run, "failed", clock=lambda: last + 90).status == "failed"


def test_a_stream_held_open_is_being_written(run_dir: Callable[[str], Path]) -> None:
    """Whoever has it open on this host may write on, however long nothing came (cap-evolve#416: a silent phase)."""
    run = run_dir("r_kill_mid")
    script = "import sys; f = open(sys.argv[1], 'a'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(run / "progress.jsonl")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(RefusedError, match=r"has progress\.jsonl open"):
            close_run(run, "failed")
        process.communicate(b"")
    assert close_run(run, "failed").status == "failed"


def test_a_writer_on_another_host_is_given_time(tmp_path: Path) -> None:
    """It can't be asked: while its stream is young it is left alone, later it is closed with that evidence."""
    run = dead_run(tmp_path, host="elsewhere")
    now = (run / "progress.jsonl").stat().st_mtime
    with pytest.raises(RefusedError, match="another host"):
        close_run(run, "failed", clock=lambda: now + 30)
    closed = close_run(run, "failed", clock=lambda: now + 90)
    assert closed.life.state == "silent" and any("another host" in fact for fact in closed.evidence)


def test_evidence_of_a_writer(tmp_path: Path) -> None:
    """Lock, host, process and its start, boot, age: each said in words."""
    run = dead_run(tmp_path)
    facts = evidence_of(run, 1000.0, 1090.0)
    assert facts[0] == "the lock is free" and "there is no process 4194305" in facts
    assert "the last event is 90 s old" in facts
    (tmp_path / "b").mkdir()
    assert "the machine was started again since" in evidence_of(dead_run(tmp_path / "b", boot="other"), None, 0.0)
    (tmp_path / "c").mkdir()
    reused = evidence_of(dead_run(tmp_path / "c", pid=os.getpid()), None, 0.0)
    assert any("is another one: it began at 20" in fact or "is still there" in fact for fact in reused)
    assert "the machine has not been started again since" in reused


def test_a_process_s_start_is_known() -> None:
    """Of this process a time in the past; of no process, and of nonsense, nothing."""
    started = process_started_at(os.getpid())
    assert started is not None and started > 0
    assert all(process_started_at(odd) is None for odd in (2**22 + 1, "1", True, None))


def test_a_damaged_stream_is_repaired_first(tmp_path: Path, command: Command) -> None:
    """Nothing is appended to damage: the error names repair."""
    run = dead_run(tmp_path)
    with open(run / "progress.jsonl", "ab") as stream:
        stream.write(b"rubbish\n")
    with pytest.raises(DamagedError, match="repair"):
        close_run(run, "failed")
    assert command("close", run, "--status", "failed") == 1 and "repair" in command.err
    assert command("repair", run, "--apply") == 0
    assert command("close", run, "--status", "failed") == 0


def test_a_torn_tail_is_set_aside(tmp_path: Path) -> None:
    """What a kill in mid-write left is kept in a file of its own, and the end is a line of its own."""
    run = dead_run(tmp_path)
    with open(run / "progress.jsonl", "ab") as stream:
        stream.write(b'{"run_id":"r","ev')
    close_run(run, "timed_out")
    assert last_event(run)[:2] == ("RunFinished", "timed_out") and not scan(run).verdicts
    assert (run / "progress.jsonl.torn-1").read_bytes() == b'{"run_id":"r","ev'


def test_secrets_in_the_reason_are_masked(tmp_path: Path) -> None:
    """The reason is text from a person: redacted as every payload is."""
    run = dead_run(tmp_path)
    close_run(run, "failed", "call failed with api_key=sk-abcdefghijklmnopqrstuvwxyz123456")
    assert b"abcdefghijklmnop" not in (run / "progress.jsonl").read_bytes()


def test_what_can_t_be_closed(tmp_path: Path, command: Command) -> None:
    """No stream, no run, an odd status: a clear sentence and the right exit code."""
    run = tmp_path / "r"
    run.mkdir()
    assert command("close", run, "--status", "failed") == 3
    (run / "run_info.json").write_text("{}")
    assert command("close", run, "--status", "failed") == 1 and "no stream" in command.err
    assert command("close", run, "--status", "running") == 2
    assert command("close", run) == 2
    with pytest.raises(UsageError):
        close_run(run, "running")


LATER = {
    "time-per-solved": {},
    "phase-times": {"phase": "evaluate"},
    "in-flight-at-death": {},
    "longest-gaps": {},
    "slowest-phases": {},
}


def answers(run: Path) -> dict[str, list[Any]]:
    """What canned questions say of one run."""
    connection = open_history([run], catalog=CatalogChoice(off=True))
    try:
        found = {}
        for name, given in LATER.items():
            asked = questions.question(name)
            found[name] = list(ask(connection, asked.sql, questions.parameters(asked, given)).rows)
        found["died-runs"] = [row[0] for row in ask(connection, questions.question("died-runs").sql, {}).rows]
        return found
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["r_kill_mid", "r_kill_early", "r_sigterm"])
def test_a_close_thirty_hours_later_changes_no_duration_and_no_cause(name: str, run_dir: Callable[[str], Path]) -> None:
    """The time of the closing is nobody's: durations, gaps, what was in flight, the first cause stay."""
    run = run_dir(name)
    before, said = answers(run), diagnose_run(run)
    page = run_page(run)
    assert before["died-runs"]
    close_run(run, "failed", "nobody was there", clock=lambda: list(scan(run))[-1].event.timestamp + 108_000)
    after, told = answers(run), diagnose_run(run)
    assert after == before
    assert (told["outcome"], told["causes"][0]["code"]) == ("failed", said["causes"][0]["code"])
    assert "nobody was there" in told["causes"][0]["message"]
    for member in ("duration_seconds", "longest_gap_seconds", "last_event_at", "in_flight"):
        assert told[member] == said[member], member
    closed_page = run_page(run)
    assert closed_page.closed is not None and closed_page.closed.evidence == told["closed"]["evidence"]
    assert closed_page.phases == [structs.replace(row, running=0) for row in page.phases]
    assert (closed_page.slowest, closed_page.in_flight) == (page.slowest, page.in_flight)


def test_a_last_event_from_the_future_has_no_age(tmp_path: Path) -> None:
    """The clock was set back since: no negative seconds are told."""
    run = dead_run(tmp_path)
    told = evidence_of(run, 5000.0, 4000.0)
    assert "clock stepped: the last event is yet to come" in told and not any("-1000" in words for words in told)
