"""Files with a second name, planted names, modes, and a lock file removed under its writer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eventstore.errors import LockedError, OutputError, RefusedError
from eventstore.format.events import RunStarted, TaskStarted
from eventstore.operations.repair.repair import repair_run
from eventstore.operations.replay import replay_run
from eventstore.stream.line_reader import find_last
from eventstore.stream.lock import RunLock, is_locked
from eventstore.stream.log import EventLog
from eventstore.stream.scan import scan
from tests.tools.faults import FaultyFiles

ROOT = Path(__file__).parents[2]
STREAM, LOCK = "progress.jsonl", "progress.lock"
PRECIOUS = b"somebody's own words\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three events, let go."""
    folder = tmp_path / "run"
    folder.mkdir()
    with EventLog.open(folder, run_id="r") as log:
        log.append(RunStarted())
        for name in "ab":
            log.append(TaskStarted(task_id=name))
    return folder


def spoil(run: Path) -> None:
    lines = (run / STREAM).read_bytes().splitlines(keepends=True)
    (run / STREAM).write_bytes(lines[0] + b"{garbage\n" + b"".join(lines[1:]))


def test_a_lock_that_is_a_link_to_somebodys_file_is_copied_first(run, tmp_path):
    """The other name keeps its bytes, and the run gets a lock of its own."""
    precious = tmp_path / "precious"
    precious.write_bytes(PRECIOUS)
    (run / LOCK).unlink()
    os.link(precious, run / LOCK)
    with EventLog.open(run) as log:
        log.append(TaskStarted(task_id="c"))
    assert precious.read_bytes() == PRECIOUS
    assert (run / LOCK).stat().st_nlink == 1 and b'"pid"' in (run / LOCK).read_bytes()


def test_a_backup_made_of_links_keeps_its_bytes(run, tmp_path):
    """As `cp -al` makes it: appending to the run, and repairing it, changes nothing in the backup."""
    backup = tmp_path / "backup"
    backup.mkdir()
    for path in run.iterdir():
        os.link(path, backup / path.name)
    before = {path.name: path.read_bytes() for path in backup.iterdir()}
    mode = (run / STREAM).stat().st_mode
    with EventLog.open(run) as log:
        log.append(TaskStarted(task_id="c"))
    assert {path.name: path.read_bytes() for path in backup.iterdir()} == before
    assert len(list(scan(run))) == 4 and len(list(scan(backup))) == 3
    assert (run / STREAM).stat().st_mode == mode
    assert not [path for path in run.iterdir() if path.name.startswith(".tmp.")]


@pytest.mark.parametrize("planted", ["link", "fifo", "leftover"])
@pytest.mark.parametrize("name", [".tmp.progress.jsonl.repair", ".tmp.progress.jsonl.set-aside"])
def test_repair_writes_to_no_file_that_waits_under_its_temporary_name(run, tmp_path, planted, name):
    """A link's other name keeps its bytes, a FIFO is not waited for, what an interrupted repair left goes away."""
    spoil(run)
    precious = tmp_path / "precious"
    precious.write_bytes(PRECIOUS)
    match planted:
        case "link":
            os.link(precious, run / name)
        case "fifo":
            os.mkfifo(run / name)
        case "leftover":
            (run / name).write_bytes(b"x" * 100_000)
    code = "import sys; from eventstore.operations.repair.repair import repair_run; repair_run(sys.argv[1], apply=True)"
    subprocess.run([sys.executable, "-c", code, str(run)], cwd=ROOT, check=True, timeout=60)
    assert precious.read_bytes() == PRECIOUS
    assert dict(scan(run).verdicts) == {} and len([*scan(run)]) == 4
    assert (run / STREAM).stat().st_nlink == 1 and not os.path.lexists(run / ".tmp.progress.jsonl.repair")


def test_a_lock_file_removed_under_a_writer_lets_no_second_one_in(run):
    """The stream is locked as well; the writer goes on, and readers still see that it lives."""
    with EventLog.open(run) as log:
        (run / LOCK).unlink()
        with pytest.raises(LockedError, match="removed or replaced under its writer"):
            RunLock(run, retry_seconds=0.1)
        (run / LOCK).unlink()  # the attempt made one
        assert is_locked(run) is True
        log.append(TaskStarted(task_id="c"))
    assert len(list(scan(run))) == 4
    with RunLock(run):
        pass


def test_a_new_stream_is_locked_too(tmp_path):
    """From the moment that it is made."""
    with EventLog.open(tmp_path, run_id="r"):
        (tmp_path / LOCK).unlink()
        with pytest.raises(LockedError):
            RunLock(tmp_path, retry_seconds=0.1)


def test_what_is_made_of_a_private_stream_is_private(run):
    """Snapshots that replay makes anew, and what repair and a writer set aside, can be read by nobody else."""
    (run / STREAM).chmod(0o600)
    replay_run(run)
    assert (run / "progress.json").stat().st_mode & 0o777 == 0o600
    spoil(run)
    repair_run(run, apply=True)
    with (run / STREAM).open("ab") as stream:
        stream.write(b'{"torn')
    EventLog.open(run).close()
    made = [path for path in run.iterdir() if path.name.startswith("progress.jsonl")]
    assert len(made) == 4
    assert {path.stat().st_mode & 0o777 for path in made} == {0o600}


def test_a_replay_that_fails_leaves_no_second_name(run):
    """The original is still there under its own name, so the backup that was made first goes away again."""
    replay_run(run)
    (run / "progress.json").write_text("{}")
    before = sorted(path.name for path in run.iterdir())
    files = FaultyFiles()
    files.room = 0
    with pytest.raises(OutputError):
        replay_run(run, files=files)
    assert sorted(path.name for path in run.iterdir()) == before


def test_a_line_is_found_where_it_stands_last(tmp_path):
    """Across the borders of what is read at once, with its number; a file that is shorter by now ends the search."""
    lines = [b"%07d\n" % (number % 50_000) for number in range(200_000)]
    path = tmp_path / "file"
    path.write_bytes(b"".join(lines))
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        found = find_last(file.fileno(), size, {lines[7], lines[131_071 - 100_000], b"absent\n"})
        assert found == {lines[7]: (8 * 150_007, 150_008), lines[31_071]: (8 * 181_071, 181_072)}
        os.truncate(path, 800)
        assert find_last(file.fileno(), size, {lines[7], lines[200]}) == {lines[7]: (56, 8)}
        assert find_last(file.fileno(), size, []) == {}


def test_events_that_two_writers_gave_one_number_are_not_taken_out_unasked(run, tmp_path):
    """Both were acknowledged: repair needs --accept-loss, and a copy of the very same line does not."""
    other = tmp_path / "other"
    other.mkdir()
    (other / STREAM).write_bytes((run / STREAM).read_bytes())
    for folder, name in ((run, "mine"), (other, "theirs")):
        with EventLog.open(folder) as log:
            log.append(TaskStarted(task_id=name))
    last = (other / STREAM).read_bytes().splitlines(keepends=True)[-1]
    same = (run / STREAM).read_bytes().splitlines(keepends=True)[-1]
    with (run / STREAM).open("ab") as stream:
        stream.write(last + same)
    plan = repair_run(run)
    assert len(plan.promised) == 1 and "another writer's event with number 3" in plan.promised[0]
    with pytest.raises(RefusedError, match="accept-loss"):
        repair_run(run, apply=True)
    assert repair_run(run, apply=True, accept_loss=True).applied
    assert dict(scan(run).verdicts) == {}
