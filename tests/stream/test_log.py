"""The log: every acknowledged event is in the stream once, in order, proved; what fails leaves nothing half done."""

import asyncio
import errno
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from eventstore.errors import DamagedError, LockedError, LogPoisonedError, OutputError, UsageError
from eventstore.format import codec
from eventstore.format.events import (
    AttemptStarted,
    PhaseChanged,
    RecordsLost,
    RunFinished,
    TaskFinished,
    TaskFinishedPayload,
    TaskStarted,
    TaskStartedPayload,
    UnknownEvent,
)
from eventstore.stream.encode import Origin, Speller
from eventstore.stream.lock import is_locked
from eventstore.stream.lock_file import read_witness
from eventstore.stream.log import EventLog
from eventstore.stream.scan import Scan, scan
from tests.tools.faults import FaultyFiles
from tests.tools.streams import sealed_stream

ROOT = Path(__file__).parents[2]
STREAM = "progress.jsonl"


def read(run_dir: Path) -> tuple[list[dict], Scan]:
    """All accepted records as JSON objects, and the finished scan."""
    found = scan(run_dir)
    return [json.loads(record.line) for record in found], found


def check_whole(run_dir: Path, count: int) -> list[dict]:
    """Exactly `count` records, each number once, nothing wrong."""
    records, found = read(run_dir)
    assert dict(found.verdicts) == {}
    assert [record["log"]["seq"] for record in records] == list(range(count))
    return records


# -- lines


def test_golden_bytes_of_a_sealed_stream(tmp_path):
    """The format of docs/format.md, byte for byte."""
    times = iter([1000.5, 1001.25])
    log = EventLog.open(tmp_path, run_id="r", clock=lambda: next(times))
    log._session = b""  # the writer's record holds a process and a time
    log.append(TaskStarted(task_id="t", category="c", payload=TaskStartedPayload(index=0, total=1)))
    log.append(TaskFinished(task_id="t", category="c", status="completed", payload=TaskFinishedPayload(severity="")))
    log.close()
    assert (tmp_path / STREAM).read_bytes() == (
        b'{"run_id":"r","event":"task_started","timestamp":1000.5,"task_id":"t","category":"c","attempt":null,'
        b'"phase":null,"status":null,"payload":{"index":0,"total":1},"orchestration_id":null,"request_key":null,'
        b'"request_name":null,"request_index":null,"log":{"seq":0,"prev":"0000000000000000","xxh3":"abcfd40410effd64"}}\n'
        b'{"run_id":"r","event":"task_finished","timestamp":1001.25,"task_id":"t","category":"c","attempt":null,'
        b'"phase":null,"status":"completed","payload":{"severity":""},"orchestration_id":null,"request_key":null,'
        b'"request_name":null,"request_index":null,"log":{"seq":1,"prev":"abcfd40410effd64","xxh3":"610a9228733d2802"}}\n'
    )


def test_the_fast_spelling_is_the_slow_one():
    """Bytes put together and bytes encoded are the same, for every kind of event and odd value."""
    deep: dict = {}
    inner = deep
    for _ in range(50):
        inner["x"] = inner = {}
    events = [
        TaskStarted(task_id='a"b\\\x00é🙂', category=None, payload=TaskStartedPayload(index=1)),
        PhaseChanged(task_id="t", payload={"payload": 'x"payload":null', "n": None, "f": 1e300, "i": 2**70}),
        PhaseChanged(payload={"nan": float("nan"), "inf": [float("-inf")]}),
        PhaseChanged(task_id="\ud800", payload={"s": "\udfff"}),
        PhaseChanged(payload=deep),
        AttemptStarted(task_id="t", attempt=1, orchestration_id="o"),
        UnknownEvent(event="later_invention", payload={"a": [1, {"b": None}]}),
        RecordsLost(payload={"count": 3}),
        RunFinished(status="failed", timestamp=12.5, run_id="run ü"),
    ]
    for origin in (Origin(), Origin("o1", "o1/0", "näme", 0)):
        speller = Speller("run ü", origin, clock=lambda: 1795962624.2481108)
        spell = speller.speller()
        for event in events:
            assert spell(event) + b"}" == codec.encode(speller.complete(event))


def test_run_time_and_orchestration_are_filled_in(tmp_path):
    """An event needs to say only what is its own."""
    with EventLog.open(tmp_path, run_id="r", origin=Origin("o", "o/3", "n", 3), clock=lambda: 7.5) as log:
        log.append(TaskStarted(task_id="t"))
        log.append(TaskStarted(task_id="t", timestamp=9, request_name="own"))
    first, second = check_whole(tmp_path, 2)
    assert (first["run_id"], first["timestamp"], first["request_key"], first["request_index"]) == ("r", 7.5, "o/3", 3)
    assert (second["timestamp"], second["request_name"], second["request_index"]) == (9, "own", None)


@pytest.mark.parametrize(
    "event", [TaskStarted(run_id="another"), {"event": "task_started"}, None, PhaseChanged(payload={"x": object()})]
)
def test_what_is_no_event_of_this_run_is_refused_and_leaves_nothing(tmp_path, event):
    """A caller's mistake is an error for the caller, and costs no number."""
    with EventLog.open(tmp_path, run_id="r") as log:
        with pytest.raises(UsageError):
            log.append(event)
        assert log.append(TaskStarted(task_id="t")) == 0
    check_whole(tmp_path, 1)


def test_one_write_for_each_line(tmp_path):
    """Body and newline go in one call, however long the line."""
    files = FaultyFiles()
    with EventLog.open(tmp_path, run_id="r", files=files) as log:
        before = files.writes
        for size in (1, 10_000, 2_000_000):
            log.append(PhaseChanged(payload={"x": "y" * size}))
        assert files.writes == before + 3
    check_whole(tmp_path, 3)


# -- sessions


def test_a_new_session_goes_on_where_the_last_one_stopped(tmp_path):
    """Numbers and chain continue; the first line of each session, and no other, names its writer."""
    for _ in range(3):
        with EventLog.open(tmp_path, run_id="r") as log:
            log.append(TaskStarted(task_id="a"))
            log.append(TaskStarted(task_id="b"))
    records = check_whole(tmp_path, 6)
    assert ["writer" in record["log"] for record in records] == [True, False] * 3
    writer = records[4]["log"]["writer"]
    assert set(writer) == {"id", "host", "pid", "boot", "opened_at", "version"}
    assert writer["pid"] == os.getpid()
    assert read_witness(tmp_path).writer == writer
    assert list(records[4]["log"]) == ["writer", "seq", "prev", "xxh3"]


def test_an_empty_lock_file_is_taken_and_filled(tmp_path):
    """A crash between making the file and writing it leaves nothing in it: no writer, no mark, no obstacle."""
    (tmp_path / "progress.lock").write_bytes(b"")
    assert read_witness(tmp_path).writer is None
    with EventLog.open(tmp_path, run_id="r", durability="always") as log:
        log.append(TaskStarted(task_id="a"))
        assert read_witness(tmp_path).writer == log.writer
    assert read_witness(tmp_path).mark.seq == 0
    check_whole(tmp_path, 1)


def test_a_last_line_that_stands_twice_is_repeated_and_counted_once(tmp_path):
    """The second copy proves itself and is not used again; nothing is appended before a repair."""
    with EventLog.open(tmp_path, run_id="r") as log:
        log.append(TaskStarted(task_id="a"))
        log.append(TaskStarted(task_id="b"))
    lines = (tmp_path / STREAM).read_bytes().splitlines(keepends=True)
    (tmp_path / STREAM).write_bytes(b"".join([*lines, lines[-1]]))
    found = scan(tmp_path)
    assert [record.event.task_id for record in found] == ["a", "b"]
    assert dict(found.verdicts) == {"repeated": 1} and found.lines.damaged == 1
    with pytest.raises(DamagedError, match="1 repeated"):
        EventLog.open(tmp_path)


@pytest.mark.parametrize("tail", [b"{", b'{"run_id":"r","event":"task', b"\0" * 4096, b'{"run_id":"r"}' * 9000])
def test_a_torn_tail_is_set_aside_before_the_first_append(tmp_path, tail):
    """Its bytes are kept in a file of their own; the next line is never glued to them."""
    with EventLog.open(tmp_path, run_id="r") as log:
        log.append(TaskStarted(task_id="a"))
    for number in (1, 2):
        with (tmp_path / STREAM).open("ab") as stream:
            stream.write(tail)
        files = FaultyFiles()
        with EventLog.open(tmp_path, files=files) as log:
            assert log.opened.torn == tmp_path / f"{STREAM}.torn-{number}"
            assert files.fsyncs == 3  # the copy and the folder before the cut, then the stream
            log.append(TaskStarted(task_id="b"))
        assert (tmp_path / f"{STREAM}.torn-{number}").read_bytes() == tail
        check_whole(tmp_path, 1 + number)


def test_a_whole_record_without_its_newline_was_never_acknowledged(tmp_path):
    """It is torn like any other: the write that should have brought its newline did not return."""
    lines = sealed_stream(3)
    (tmp_path / STREAM).write_bytes(b"".join(lines)[:-1])
    with EventLog.open(tmp_path) as log:
        assert log.append(TaskStarted(task_id="x")) == 2
    assert (tmp_path / f"{STREAM}.torn-1").read_bytes() == lines[2][:-1]


def test_lines_that_agentcompass_wrote_are_adopted(run_dir):
    """Their bytes and number become part of the chain; a later change in them is noticed."""
    run = run_dir("r_kill_mid")
    before = (run / STREAM).read_bytes()
    with EventLog.open(run) as log:
        adopted = log.opened.adopted
        assert log.append(TaskStarted(task_id="x")) == before.count(b"\n")
    with EventLog.open(run) as log:
        assert log.opened.adopted is None
        log.append(TaskStarted(task_id="y"))
    records, found = read(run)
    assert dict(found.verdicts) == {}
    assert records[-2]["log"]["adopted"] == adopted
    assert records[-2]["log"]["prev"] == adopted["xxh3"]
    assert adopted["bytes"] == len(before.rpartition(b"\n")[0]) + 1
    content = bytearray((run / STREAM).read_bytes())
    content[content.index(b"timestamp") + 15] ^= 1
    (run / STREAM).write_bytes(content)
    with pytest.raises(DamagedError):
        EventLog.open(run)


def _cut_a_line(content: bytes, lines: list[bytes]) -> bytes:
    return content.replace(lines[2], b"")


def _change_a_line(content: bytes, lines: list[bytes]) -> bytes:
    return content.replace(lines[2], lines[2].replace(b"plan", b"plaN"))


def _add_rubbish(content: bytes, lines: list[bytes]) -> bytes:
    return content + b"rubbish\n"


def _add_unsealed(content: bytes, lines: list[bytes]) -> bytes:
    return content + codec.encode(TaskStarted(run_id="r", timestamp=1)) + b"\n"


def _lose_the_end(content: bytes, lines: list[bytes]) -> bytes:
    return b"".join(lines[:-2])


@pytest.mark.parametrize("damage", [_cut_a_line, _change_a_line, _add_rubbish, _add_unsealed, _lose_the_end])
def test_anything_worse_than_a_torn_tail_refuses_to_open(tmp_path, damage):
    """Nothing is appended to what can't be trusted; the error says what, where, and which command helps."""
    with EventLog.open(tmp_path, run_id="r", durability="always") as log:
        for number in range(6):
            log.append(PhaseChanged(task_id=str(number), phase="plan"))
    content = (tmp_path / STREAM).read_bytes()
    damaged = damage(content, content.splitlines(keepends=True))
    (tmp_path / STREAM).write_bytes(damaged)
    with pytest.raises(DamagedError, match="compass-es repair"):
        EventLog.open(tmp_path)
    assert (tmp_path / STREAM).read_bytes() == damaged
    assert is_locked(tmp_path) is False


def test_a_stream_that_is_gone_although_it_was_promised_is_not_begun_again(tmp_path):
    """The witness remembers; an empty new stream would hide the loss."""
    with EventLog.open(tmp_path, run_id="r", durability="always") as log:
        log.append(TaskStarted(task_id="a"))
    (tmp_path / STREAM).unlink()
    with pytest.raises(DamagedError, match="stable storage"):
        EventLog.open(tmp_path)
    assert not (tmp_path / STREAM).exists()


def test_another_runs_stream_is_not_continued(tmp_path):
    """The caller's run id must be the stream's."""
    with EventLog.open(tmp_path, run_id="r") as log:
        log.append(TaskStarted(task_id="a"))
    with pytest.raises(UsageError, match="belongs to run r"):
        EventLog.open(tmp_path, run_id="other")
    assert is_locked(tmp_path) is False


def test_events_may_follow_a_terminal_one(tmp_path):
    """The log knows no states: repair and provenance append after the end."""
    with EventLog.open(tmp_path, run_id="r") as log:
        log.append(RunFinished(status="completed"))
    with EventLog.open(tmp_path) as log:
        log.append(RecordsLost(payload={"count": 1}))
    check_whole(tmp_path, 2)


# -- one writer


def test_a_second_process_is_refused_with_host_pid_and_start(tmp_path):
    """And the first one goes on undisturbed."""
    with EventLog.open(tmp_path, run_id="r") as log:
        script = "import sys\nfrom eventstore.stream.log import EventLog\nEventLog.open(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1
        assert f"process {os.getpid()} on host {log.writer['host']}" in done.stderr
        assert log.writer["opened_at"] in done.stderr
        with pytest.raises(LockedError):
            EventLog.open(tmp_path)
        log.append(TaskStarted(task_id="a"))
    check_whole(tmp_path, 1)


def test_a_forked_child_may_not_write_and_does_not_keep_the_lock(tmp_path):
    """What the child tries is refused; when the parent lets go, the directory is free although the child lives."""
    log = EventLog.open(tmp_path, run_id="r")
    log.append(TaskStarted(task_id="a"))
    context = multiprocessing.get_context("fork")
    told, asked = context.Queue(), context.Event()

    def child() -> None:
        try:
            log.append(TaskStarted(task_id="from the child"))
            told.put("written")
        except UsageError as error:
            told.put(str(error))
        log.close()
        asked.wait(30)

    process = context.Process(target=child)
    process.start()
    assert "forked child may not write" in told.get(timeout=30)
    log.append(TaskStarted(task_id="b"))
    log.close()
    assert is_locked(tmp_path) is False
    asked.set()
    process.join(30)
    assert [record["task_id"] for record in check_whole(tmp_path, 2)] == ["a", "b"]


# -- many callers


@pytest.mark.parametrize("durability", ["os", "group", "always"])
def test_a_hundred_threads_append_each_number_once_in_each_callers_order(tmp_path, durability):
    """No line lost, doubled or out of its caller's order."""
    count = {"always": 20, "os": 200, "group": 1000}[durability]
    numbers: list[list[int]] = [[] for _ in range(100)]
    with EventLog.open(tmp_path, run_id="r", durability=durability) as log:

        def work(caller: int) -> None:
            for step in range(count):
                numbers[caller].append(log.append(PhaseChanged(task_id=str(caller), payload={"step": step})))

        threads = [threading.Thread(target=work, args=(caller,)) for caller in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = check_whole(tmp_path, 100 * count)
    steps: dict[str, list[int]] = {}
    for record in records:
        steps.setdefault(record["task_id"], []).append(record["payload"]["step"])
    assert all(found == list(range(count)) for found in steps.values())
    assert sorted(number for found in numbers for number in found) == list(range(100 * count))
    assert all(found == sorted(found) for found in numbers)


@pytest.mark.parametrize("durability", ["group", "always"])
def test_a_thousand_asyncio_tasks_append_each_number_once(tmp_path, durability):
    """As with threads; fsyncs are shared among all tasks that are ready."""
    files = FaultyFiles()
    steps = 20 if durability == "always" else 100

    async def work(log: EventLog, caller: int) -> None:
        for step in range(steps):
            await log.append_async(PhaseChanged(task_id=str(caller), payload={"step": step}))

    async def main(log: EventLog) -> None:
        await asyncio.gather(*(work(log, caller) for caller in range(1000)))

    with EventLog.open(tmp_path, run_id="r", durability=durability, files=files) as log:
        asyncio.run(main(log))
        if durability == "always":
            assert read_witness(tmp_path).mark.seq == 1000 * steps - 1
    records = check_whole(tmp_path, 1000 * steps)
    assert Counter(record["task_id"] for record in records) == {str(caller): steps for caller in range(1000)}
    assert files.fsyncs < 2_000


# -- durability


def test_always_returns_after_the_fsync_and_moves_the_mark(tmp_path):
    """What a caller was told is what the witness says."""
    files = FaultyFiles()
    with EventLog.open(tmp_path, run_id="r", durability="always", files=files) as log:
        for number in range(5):
            before = files.fsyncs
            log.append(TaskStarted(task_id="a"))
            mark = read_witness(tmp_path).mark
            assert files.fsyncs > before
            assert (mark.seq, mark.bytes) == (number, (tmp_path / STREAM).stat().st_size)


def test_callers_of_always_share_an_fsync(tmp_path):
    """While a leader syncs the others write; one fsync serves them all, without a timer."""
    files = FaultyFiles()
    files.fsync_seconds = 0.02
    with EventLog.open(tmp_path, run_id="r", durability="always", files=files) as log:
        before = files.fsyncs
        threads = [threading.Thread(target=log.append, args=(TaskStarted(task_id="a"),)) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert files.fsyncs - before < 20
    check_whole(tmp_path, 50)


def test_group_is_durable_a_moment_later_without_being_asked(tmp_path):
    """The background thread syncs and moves the mark."""
    with EventLog.open(tmp_path, run_id="r", durability="group") as log:
        log.append(TaskStarted(task_id="a"))
        deadline = time.monotonic() + 20
        while read_witness(tmp_path).mark is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert read_witness(tmp_path).mark.seq == 0


def test_os_is_never_synced_unless_somebody_asks(tmp_path):
    """`sync()` waits whatever the durability."""
    files = FaultyFiles()
    with EventLog.open(tmp_path, run_id="r", durability="os", files=files) as log:
        before = files.fsyncs
        for _ in range(1000):
            log.append(TaskStarted(task_id="a"))
        assert files.fsyncs == before
        log.sync()
        assert files.fsyncs == before + 1
        assert read_witness(tmp_path).mark.seq == 999
        log.append(TaskStarted(task_id="b"))
    assert files.fsyncs == before + 1
    check_whole(tmp_path, 1001)


def test_group_never_holds_the_caller_for_a_slow_fsync(tmp_path):
    """With a disk that takes a second for each fsync, ten thousand appends pass meanwhile."""
    files = FaultyFiles()
    log = EventLog.open(tmp_path, run_id="r", durability="group", files=files)
    files.fsync_seconds = 1.0
    log.append(TaskStarted(task_id="first"))
    while files.fsyncs < 2:  # one for the folder, and now the slow one has begun
        time.sleep(0.001)
    for _ in range(10_000):
        log.append(TaskStarted(task_id="a"))
    assert files.fsyncs == 2, "appending outlasted a whole fsync"
    assert read_witness(tmp_path).mark is None
    files.fsync_seconds = 0.0
    log.close()
    check_whole(tmp_path, 10_001)


def test_awaiting_always_leaves_the_event_loop_free(tmp_path):
    """Other tasks run while the disk is busy."""
    files = FaultyFiles()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    async def main(log: EventLog) -> None:
        ticking = asyncio.create_task(tick())
        await log.append_async(TaskStarted(task_id="a"))
        await log.sync_async()
        ticking.cancel()

    with EventLog.open(tmp_path, run_id="r", durability="always", files=files) as log:
        files.fsync_seconds = 0.3
        asyncio.run(main(log))
        files.fsync_seconds = 0
    assert ticks > 5


# -- what goes wrong


@pytest.mark.parametrize("room", [0, 1, 100, 400])
def test_a_full_disk_leaves_nothing_half_written_and_recording_goes_on(tmp_path, room):
    """The caller is told; the same event succeeds once there is space, under the same number."""
    files = FaultyFiles()
    with EventLog.open(tmp_path, run_id="r", files=files) as log:
        log.append(TaskStarted(task_id="a"))
        size = (tmp_path / STREAM).stat().st_size
        event = PhaseChanged(task_id="b", payload={"x": "y" * 1000})
        files.room = room
        for _ in range(3):
            with pytest.raises(OutputError, match=r"No space left on device.*once there is room"):
                log.append(event)
            assert (tmp_path / STREAM).stat().st_size == size
            files.room = room
        files.room = None
        assert log.append(event) == 1
    check_whole(tmp_path, 2)


def test_an_io_error_while_writing_is_undone(tmp_path):
    """EIO on a write is an error for the caller, not for the stream."""
    files = FaultyFiles()
    with EventLog.open(tmp_path, run_id="r", files=files) as log:
        files.write_errno = errno.EIO
        with pytest.raises(OutputError, match="Input/output error"):
            log.append(TaskStarted(task_id="a"))
        files.write_errno = None
        log.append(TaskStarted(task_id="a"))
    records = check_whole(tmp_path, 1)
    assert "writer" in records[0]["log"]  # the session's first line is the first that was written


def test_short_writes_are_continued(tmp_path):
    """A write that takes only a part is no error."""
    files = FaultyFiles()
    with EventLog.open(tmp_path, run_id="r", files=files) as log:
        files.short_writes = 3
        log.append(PhaseChanged(payload={"x": "y" * 5000}))
        log.append(TaskStarted(task_id="a"))
    check_whole(tmp_path, 2)


def test_what_can_not_be_undone_poisons_the_log(tmp_path):
    """Half a line that stays must not get a neighbour: every later append fails loudly."""
    files = FaultyFiles()
    log = EventLog.open(tmp_path, run_id="r", files=files)
    log.append(TaskStarted(task_id="a"))
    files.room, files.truncate_errno = 50, errno.EIO
    with pytest.raises(LogPoisonedError, match="can't be undone"):
        log.append(TaskStarted(task_id="b"))
    files.room = files.truncate_errno = None
    for _ in range(2):
        with pytest.raises(LogPoisonedError):
            log.append(TaskStarted(task_id="c"))
    log.close()
    with EventLog.open(tmp_path) as log:
        assert log.opened.torn is not None
        log.append(TaskStarted(task_id="d"))
    check_whole(tmp_path, 2)


@pytest.mark.parametrize("durability", ["always", "group", "os"])
def test_a_failed_fsync_poisons_the_log(tmp_path, durability):
    """The kernel may have dropped what it could not write; asking again would be answered with a lie."""
    files = FaultyFiles()
    log = EventLog.open(tmp_path, run_id="r", durability=durability, files=files)
    log.append(TaskStarted(task_id="a"))
    log.sync()
    files.fsync_errno = errno.EIO
    with pytest.raises(LogPoisonedError, match="fsync failed"):
        log.append(TaskStarted(task_id="b"))
        log.sync()
    files.fsync_errno = None
    with pytest.raises(LogPoisonedError):
        log.append(TaskStarted(task_id="c"))
    with pytest.raises(LogPoisonedError):
        log.sync()
    log.close()
    assert is_locked(tmp_path) is False
    assert read_witness(tmp_path).mark.seq == 0  # what was promised is still what was promised


def test_a_failed_fsync_reaches_those_who_await(tmp_path):
    """A task that waits for the disk gets the error, not silence."""
    files = FaultyFiles()
    log = EventLog.open(tmp_path, run_id="r", durability="always", files=files)
    files.fsync_errno = errno.EIO

    async def main() -> None:
        await log.append_async(TaskStarted(task_id="a"))

    with pytest.raises(LogPoisonedError):
        asyncio.run(main())
    log.close()


def test_an_interrupt_in_the_middle_of_an_append_breaks_no_chain(tmp_path):
    """Ctrl-C may strike before or after the write: the next append looks at what the file holds."""
    files = FaultyFiles()
    with EventLog.open(tmp_path, run_id="r", files=files) as log:
        for moment in ("before", "after", "half"):
            log.append(TaskStarted(task_id="a"))

            def strike(fd: int, content: bytes, moment: str = moment) -> int:
                if moment != "before":
                    os.write(fd, content if moment == "after" else content[:10])
                raise KeyboardInterrupt

            log._write = strike
            with pytest.raises(KeyboardInterrupt):
                log.append(TaskStarted(task_id=moment))
            log._write = files.write
    tasks = [record["task_id"] for record in check_whole(tmp_path, 4)]
    assert tasks == ["a", "a", "after", "a"]


def test_an_interrupt_as_the_last_thing_is_settled_on_closing(tmp_path):
    """What was written counts, what was not is cut off."""
    log = EventLog.open(tmp_path, run_id="r")
    log.append(TaskStarted(task_id="a"))

    def strike(fd: int, content: bytes) -> int:
        os.write(fd, content[:10])
        raise KeyboardInterrupt

    log._write = strike
    with pytest.raises(KeyboardInterrupt):
        log.append(TaskStarted(task_id="b"))
    log.close()
    check_whole(tmp_path, 1)


@pytest.mark.parametrize("durability", ["always", "group", "os"])
def test_a_file_replaced_under_the_writer_is_noticed_and_its_lines_are_kept(tmp_path, durability):
    """The caller is told, and everything acknowledged is in a file of its own."""
    log = EventLog.open(tmp_path, run_id="r", durability=durability)
    for _ in range(5):
        log.append(TaskStarted(task_id="a"))
    held = (tmp_path / STREAM).read_bytes()
    other = tmp_path / "other"
    other.write_bytes(b"")
    os.replace(other, tmp_path / STREAM)
    with pytest.raises(LogPoisonedError, match=r"replaced under its writer.*progress\.jsonl\.rescued-1"):
        for _ in range(2000):
            log.append(TaskStarted(task_id="b"))
            time.sleep(0.0005)
    log.close()
    rescued = (tmp_path / f"{STREAM}.rescued-1").read_bytes()
    assert rescued.startswith(held)
    assert rescued.endswith(b"\n")


def test_a_deleted_directory_is_an_error_for_the_caller(tmp_path):
    """Not a silent writing into nowhere."""
    run = tmp_path / "run"
    run.mkdir()
    log = EventLog.open(run, run_id="r", durability="always")
    log.append(TaskStarted(task_id="a"))
    for path in run.iterdir():
        path.unlink()
    run.rmdir()
    with pytest.raises(LogPoisonedError, match="removed under its writer"):
        log.append(TaskStarted(task_id="b"))
    log.close()


def test_somebody_elses_line_is_noticed(tmp_path):
    """Two writers in one stream can't both be right."""
    log = EventLog.open(tmp_path, run_id="r", durability="always")
    log.append(TaskStarted(task_id="a"))
    with (tmp_path / STREAM).open("ab") as stream:
        stream.write(b"{}\n")
    with pytest.raises(LogPoisonedError, match="somebody else changed it"):
        log.append(TaskStarted(task_id="b"))
    log.close()


def test_a_file_size_limit_is_an_error_and_no_signal(tmp_path):
    """RLIMIT_FSIZE: told like a full disk, undone like one."""
    script = (
        "import resource, sys\n"
        "from eventstore.errors import OutputError\n"
        "from eventstore.format.events import PhaseChanged\n"
        "from eventstore.stream.log import EventLog\n"
        "log = EventLog.open(sys.argv[1], run_id='r')\n"
        "log.append(PhaseChanged())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))\n"
        "try: log.append(PhaseChanged(payload={'x': 'y' * 3000})); print('written')\n"
        "except OutputError as error: print(error)\n"
        "log.append(PhaseChanged()); log.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert "nothing of it was kept" in done.stdout
    check_whole(tmp_path, 2)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2000
    assert signal.SIGXFSZ is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_directory_is_an_error_with_its_path(tmp_path):
    """Before anything is made."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match=str(tmp_path)):
            EventLog.open(tmp_path, run_id="r")
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_takes_no_files_is_an_error_with_its_path():
    """Whoever asks, the superuser included."""
    with pytest.raises(OutputError, match=r"/proc/self/progress\.lock"):
        EventLog.open("/proc/self", run_id="r")


def test_names_of_255_bytes_work(tmp_path):
    """Beside them, everything a writer makes still has a name that fits."""
    run = tmp_path / ("é" * 127 + "x")
    run.mkdir()
    with EventLog.open(run, durability="always") as log:
        log.append(TaskStarted(task_id="a"))
    assert check_whole(run, 1)[0]["run_id"] == run.name


def test_closing_twice_is_harmless_and_appending_afterwards_is_not(tmp_path):
    """A closed log says so."""
    log = EventLog.open(tmp_path, run_id="r")
    log.append(TaskStarted(task_id="a"))
    log.close()
    log.close()
    with pytest.raises(UsageError, match="closed"):
        log.append(TaskStarted(task_id="b"))
    with pytest.raises(UsageError, match="durability"):
        EventLog.open(tmp_path, durability="never")  # type: ignore[arg-type]


def test_os_durability_notices_a_replaced_file_without_a_background_thread(tmp_path):
    """Every 256 appends it looks whether its file is still the one with the name."""
    before = set(threading.enumerate())
    log = EventLog.open(tmp_path, run_id="r", durability="os")
    assert not set(threading.enumerate()) - before
    (tmp_path / STREAM).unlink()
    with pytest.raises(LogPoisonedError):
        for _ in range(600):
            log.append(TaskStarted(task_id="a"))
    log.close()


@pytest.mark.parametrize("durability", ["group", "always"])
def test_a_storm_of_interrupts_breaks_neither_chain_nor_counts(tmp_path, durability):
    """Exceptions out of a signal handler, at any moment of an append: every call that returned is in the stream."""

    class Struck(Exception):
        pass

    def strike(number: int, frame: object) -> None:
        if armed:
            raise Struck

    armed = False
    log = EventLog.open(tmp_path, run_id="r", durability=durability)
    log.take_unread()
    returned, struck = 0, 0
    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
    try:
        while struck < 300:
            try:
                armed = True
                log.append(PhaseChanged(task_id=str(returned)))
                returned += 1
                armed = False
            except Struck:
                armed = False
                struck += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    log.append(TaskStarted(task_id="last"))
    lines = log.take_unread()
    log.close()
    records, found = read(tmp_path)
    assert dict(found.verdicts) == {}
    assert {record["task_id"] for record in records} >= {str(number) for number in range(returned)}
    assert [json.loads(line)["log"]["seq"] for line in lines] == list(range(len(records)))
