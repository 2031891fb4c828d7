"""File systems that lie: no locks, late attributes, clashing names, wrong times, copies and restored backups.

Each is detected, or harmless, or documented (docs/faults.md, "File systems"); each has a test here.
"""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.errors import DamagedError, LogPoisonedError, OutputError, RefusedError
from eventstore.format.events import PhaseChanged, RunStarted
from eventstore.format.records import VERDICTS
from eventstore.operations.close import close_run
from eventstore.operations.repair.repair import repair_run
from eventstore.run.liveness import life_of
from eventstore.stream import lock
from eventstore.stream.filesystem import FileSystem
from eventstore.stream.log import EventLog
from eventstore.stream.scan import scan
from tests.tools.commands import Command
from tests.tools.streams import sealed_stream


def event(task_id: str = "t") -> PhaseChanged:
    return PhaseChanged(task_id=task_id, attempt=1, phase="plan")


def recorded(tmp_path: Path, count: int = 3, name: str = "r") -> Path:
    run = tmp_path / name
    run.mkdir()
    with EventLog.open(run, run_id="r") as log:
        for number in range(count):
            log.append(event(f"t{number}"))
    return run


def tasks(run: Path) -> list[str | None]:
    return [record.event.task_id for record in scan(run)]


def errors(run: Path) -> dict[str, int]:
    found = scan(run)
    for _ in found.blocks():
        pass
    return {name: count for name, count in found.verdicts.items() if VERDICTS[name] == "error"}


# -- no locks, as on NFS without its lock service


def test_without_locks_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    """Two writers could not be told apart: a clear refusal instead of a guess; reading works."""
    run = recorded(tmp_path)

    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    with pytest.raises(OutputError, match="gives no locks"):
        EventLog.open(run)
    assert lock.is_locked(run) is None and tasks(run) == ["t0", "t1", "t2"]
    assert command("close", run, "--status", "failed") in (1, 3) and "lock" in command.err
    assert command("repair", run) == 0


def test_a_lock_that_holds_nothing_is_found_by_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that grants every lock: the second writer's line is seen at the next fsync, and the log stops."""
    run = recorded(tmp_path)
    monkeypatch.setattr(lock.fcntl, "flock", lambda fd, operation: None)
    with pytest.raises(LogPoisonedError, match="somebody else changed it"), EventLog.open(run) as first:
        first.append(event("first"))
        first.sync()
        with EventLog.open(run) as second:
            second.append(event("second"))
        first.append(event("late"))
        first.sync()
    assert {"first", "second", "late"} <= set(tasks(run)) or errors(run)


# -- late attributes


def test_a_size_that_comes_late_is_a_shorter_stream(tmp_path: Path) -> None:
    """A reader that sees an old size reads a whole prefix, and at most a tail; nothing is invented."""
    run = recorded(tmp_path)
    content = (run / "progress.jsonl").read_bytes()
    (run / "progress.lock").unlink()
    for size in range(len(content)):
        (run / "progress.jsonl").write_bytes(content[:size])
        whole = content[:size].count(b"\n")
        assert tasks(run) == [f"t{number}" for number in range(whole)] and not errors(run)


def test_a_size_older_than_the_mark_is_told(tmp_path: Path) -> None:
    """With the mark already there a late size looks like loss: reported, nothing is written, and later it is fine."""
    run = recorded(tmp_path)
    content = (run / "progress.jsonl").read_bytes()
    (run / "progress.jsonl").write_bytes(content[: content.find(b"\n") + 1])
    assert errors(run) == {"lost_acknowledged": 1}
    with pytest.raises(DamagedError):
        EventLog.open(run)
    with pytest.raises(RefusedError, match="on stable storage"):
        repair_run(run, apply=True)
    (run / "progress.jsonl").write_bytes(content)
    assert not errors(run)


def test_a_stream_that_grows_while_it_is_repaired_is_left_alone(tmp_path: Path) -> None:
    """Somebody who takes no lock appends in the midst of a repair: refused, his line is kept."""
    run = tmp_path / "r"
    run.mkdir()
    path = run / "progress.jsonl"
    path.write_bytes(b"".join(sealed_stream(2)) + b"x\n")

    class Meanwhile(FileSystem):
        def fsync(self, fd: int) -> None:
            with open(path, "ab") as stream:
                stream.write(b"late\n")

    with pytest.raises(RefusedError, match="changed while it was repaired"):
        repair_run(run, apply=True, files=Meanwhile())
    assert path.read_bytes().endswith(b"late\n")


# -- names that clash


def test_names_that_differ_in_case_only(tmp_path: Path) -> None:
    """On a file system without case `PROGRESS.JSONL.UNREPAIRED-1` is the same name: a number further is taken."""
    run = tmp_path / "r"
    run.mkdir()
    damaged = b"".join(sealed_stream(2)) + b"x\n"
    (run / "progress.jsonl").write_bytes(damaged)

    class NoCase(FileSystem):
        def link(self, source: object, target: object) -> None:
            taken = {name.lower() for name in os.listdir(run)}
            if Path(str(target)).name.lower() in taken:
                raise FileExistsError(errno.EEXIST, "File exists")
            super().link(source, target)  # type: ignore[arg-type]

    (run / "PROGRESS.JSONL.UNREPAIRED-1").write_bytes(b"mine")
    with pytest.raises(OutputError, match="File exists"):
        repair_run(run, apply=True, files=NoCase())
    assert (run / "progress.jsonl").read_bytes() == damaged
    assert (run / "PROGRESS.JSONL.UNREPAIRED-1").read_bytes() == b"mine"


def test_without_hard_links_the_backup_is_a_copy(tmp_path: Path) -> None:
    """FAT, and some network file systems."""
    run = tmp_path / "r"
    run.mkdir()
    damaged = b"".join(sealed_stream(2)) + b"x\n"
    (run / "progress.jsonl").write_bytes(damaged)

    class NoLinks(FileSystem):
        def link(self, source: object, target: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

    repaired = repair_run(run, apply=True, files=NoLinks())
    assert repaired.applied and (run / str(repaired.backup)).read_bytes() == damaged


# -- times that lie


@pytest.mark.parametrize("shift", [-10 * 365 * 86400, 10 * 365 * 86400], ids=["past", "future"])
def test_a_wrong_mtime_changes_nothing(run_dir: Callable[[str], Path], command: Command, shift: int) -> None:
    """Neither replay nor repair looks at times of files; life takes a time in the future for no sign of youth."""
    run = run_dir("r_kill_mid")
    moment = time.time() + shift
    for path in run.rglob("*"):
        os.utime(path, (moment, moment))
    last = scan(run)
    for _ in last.blocks():
        pass
    assert not life_of(run, last_timestamp=moment - 3600).writing
    assert command("replay", run) == 0 and command("repair", run) == 0
    assert close_run(run, "failed").status == "failed"


def test_a_clock_that_steps_back_is_no_damage(tmp_path: Path) -> None:
    """Order is the file's, not the timestamps' (pyeventsourcing/eventsourcing#89, AxonIQ/AxonFramework#4829)."""
    run = tmp_path / "r"
    run.mkdir()
    times = iter((1000.0, 5000.0, 10.0, 900.0))
    with EventLog.open(run, run_id="r", clock=lambda: next(times)) as log:
        for number in range(4):
            log.append(event(f"t{number}"))
    assert tasks(run) == ["t0", "t1", "t2", "t3"] and not errors(run)


# -- copies and restored backups


def test_a_copy_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Copied as it is, even with the lock file of a dead writer: it opens, and goes on independently."""
    run = recorded(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with EventLog.open(run) as one, EventLog.open(copy) as other:
        one.append(event("one"))
        other.append(event("other"))
    assert tasks(run)[-1] == "one" and tasks(copy)[-1] == "other" and not errors(run) and not errors(copy)


def test_a_copy_of_a_live_run_is_a_prefix(tmp_path: Path) -> None:
    """Copied in mid-write: whole lines, perhaps a tail; the copy's lock is free and nothing blocks it."""
    run = tmp_path / "r"
    run.mkdir()
    with EventLog.open(run, run_id="r") as log:
        log.append(RunStarted())
        log.append(event())
        copy = tmp_path / "copy"
        copy.mkdir()
        content = (run / "progress.jsonl").read_bytes()
        (copy / "progress.jsonl").write_bytes(content[:-30])
        with EventLog.open(copy) as other:
            other.append(event("goes on"))
    assert tasks(copy)[-1] == "goes on" and not errors(copy)


def test_an_older_stream_under_a_newer_witness_is_found(tmp_path: Path, command: Command) -> None:
    """The stream alone restored from a backup: the witness knows of more, and nothing is appended without consent."""
    run = recorded(tmp_path)
    backup = (run / "progress.jsonl").read_bytes()
    with EventLog.open(run) as log:
        log.append(event("later"))
    (run / "progress.jsonl").write_bytes(backup)
    assert errors(run) == {"lost_acknowledged": 1}
    with pytest.raises(DamagedError):
        EventLog.open(run)
    assert command("repair", run, "--apply") == 1
    assert command("repair", run, "--apply", "--accept-loss") == 0
    with EventLog.open(run) as log:
        log.append(event("again"))
    assert tasks(run) == ["t0", "t1", "t2", None, "again"]


def test_an_older_witness_under_a_newer_stream_is_harmless(tmp_path: Path) -> None:
    """The lock file alone restored, or lost: it promises less, never anything false."""
    run = recorded(tmp_path)
    witness = (run / "progress.lock").read_bytes()
    with EventLog.open(run) as log:
        log.append(event("later"))
    (run / "progress.lock").write_bytes(witness)
    assert not errors(run)
    (run / "progress.lock").unlink()
    assert not errors(run)
    with EventLog.open(run) as log:
        log.append(event("more"))
    assert tasks(run)[-2:] == ["later", "more"]


def test_a_whole_directory_restored_is_whole_but_older(tmp_path: Path) -> None:
    """Stream and witness from the same backup agree: nothing in the directory can tell (docs/faults.md)."""
    run = recorded(tmp_path)
    backup = tmp_path / "backup"
    shutil.copytree(run, backup)
    with EventLog.open(run) as log:
        log.append(event("later"))
    shutil.rmtree(run)
    shutil.copytree(backup, run)
    assert not errors(run) and tasks(run) == ["t0", "t1", "t2"]


def test_a_stream_replaced_under_its_writer_is_noticed(tmp_path: Path) -> None:
    """A restore while the writer is at work: it stops, and what it has is kept under another name."""
    run = recorded(tmp_path)
    with pytest.raises(LogPoisonedError, match="replaced under its writer"), EventLog.open(run) as log:
        log.append(event("kept"))
        shutil.copy(run / "progress.jsonl", run / "other")
        os.replace(run / "other", run / "progress.jsonl")
        log.sync()
    assert (run / "progress.jsonl.rescued-1").exists()


def test_flock_is_what_tells_two_writers_apart(tmp_path: Path) -> None:
    """The lock is released with its descriptor, however the process ends: no stale lock file blocks anybody."""
    run = recorded(tmp_path)
    fd = os.open(run / "progress.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert lock.is_locked(run) is True
    os.close(fd)
    assert lock.is_locked(run) is False
