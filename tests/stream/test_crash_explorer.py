"""Every state that a crash can leave is judged; here a seeded sample, and the explorer itself under test."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventstore.format.events import PhaseChanged
from eventstore.operations import replay
from eventstore.operations.verify.verify import verify_run
from eventstore.recording.recorder import RunRecorder
from eventstore.run.directory import RunDir
from eventstore.stream import atomic_file, recovery
from eventstore.stream.atomic_file import replace_file
from eventstore.stream.filesystem import FileSystem
from eventstore.stream.log import EventLog
from eventstore.stream.scan import Scan, scan
from tests.tools.crash.disk import File, RecordingFileSystem, Truncate, Write, content_after, points
from tests.tools.crash.explorer import Exploration, fingerprint
from tests.tools.crash.judge import Wrong
from tests.tools.crash.scenarios import SCENARIOS, accepted
from tests.tools.crash.states import at_random, cut_at, systematic

SEED, STATES, SHARE = 20260301, 5_000, 200


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where the system has one: states are laid down and thrown away by the thousand."""
    import tempfile

    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        yield Path(folder)


def test_a_sample_of_crash_states_keeps_every_promise(memory: Path) -> None:
    """Recorder, log, repair, replay and close, crashed between any two calls: nothing acknowledged is missing, no
    verdict is wrong, recovery works, and a second crash in it is survived."""
    found = Exploration(memory)
    seed = SEED
    while found.total < STATES:
        found.explore(seed, STATES, share=SHARE)
        seed += 1
    print(f"{found.total} distinct states: {dict(found.states)}, {found.second_crashes} second crashes")
    assert found.total == STATES and not found.wrong and set(found.states) == set(SCENARIOS)
    assert found.second_crashes >= 80


def test_every_command_answers_for_crash_states(memory: Path) -> None:
    """No traceback, no change by a reading command, and after repair, replay and close nothing is left to repair."""
    calls = Exploration(memory).call_commands(SEED, 20, without=frozenset({"index", "export"}))
    assert calls > 200


def test_the_same_seed_makes_the_same_scenario(tmp_path: Path) -> None:
    """What is recorded for a seed differs in ids of writers alone: the calls are the same."""
    kinds = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        scenario = SCENARIOS["log"](folder, random.Random(5))
        kinds.append([(note.kind, note.inode, type(note.change)) for note in scenario.disk.notes])
    assert kinds[0] == kinds[1] and len(kinds[0]) > 5


# -- the explorer finds what is wrong: without these, its silence would prove nothing


def explore(memory: Path, *kinds: str) -> None:
    found = Exploration(memory)
    for seed in range(1, 9):
        found.explore(seed, 3000, share=300, kinds=kinds or tuple(SCENARIOS))


def test_a_log_without_fsync_is_found_out(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledged and not synced (nats-io/nats-server#7564, etcd-io/etcd#14370 and #14143)."""
    monkeypatch.setattr(EventLog, "_make_durable", lambda self, position: None)
    with pytest.raises(Wrong, match="every synced line is there"):
        explore(memory)


def test_a_stream_without_a_synced_name_is_found_out(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file's name lives in its folder (etcd-io/etcd#6368)."""
    monkeypatch.setattr(RecordingFileSystem, "sync_folder", lambda self, folder: None)
    with pytest.raises(Wrong, match=r"has its name|is kept"):
        explore(memory)


def test_a_mark_before_its_fsync_is_found_out(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A witness that promises too early turns an ordinary crash into a false alarm."""
    made_durable = EventLog._make_durable

    def too_early(self: EventLog, position: object) -> None:
        self._mark(position)  # type: ignore[arg-type]
        made_durable(self, position)  # type: ignore[arg-type]

    monkeypatch.setattr(EventLog, "_make_durable", too_early)
    with pytest.raises(Wrong, match=r"reported missing|false alarm"):
        explore(memory)


def test_a_torn_tail_that_is_not_set_aside_is_found_out(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next append lands on the half line (PrimeIntellect-ai/verifiers#803, anthropics/claude-code#52387)."""
    monkeypatch.setattr(recovery, "_set_aside", lambda *arguments: None)
    with pytest.raises(Exception, match=r"appending|changed|closing|damage|once|rubbish"):
        explore(memory)


def test_a_scan_that_trusts_the_unproven_is_found_out(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage that nobody reports is a wrong verdict, whatever else works."""
    monkeypatch.setattr(Scan, "_note", lambda self, *arguments: None)
    with pytest.raises(Wrong, match=r"a tail is none|a tail is reported"):
        explore(memory)


def test_an_original_without_a_synced_second_name_is_found_out(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What replay replaces: found by the explorer. A crash kept the new file and lost the old one's other name."""

    def write(replayed: replay.Replayed, files: FileSystem) -> replay.Replayed:
        for name in replayed.changed:
            path = replayed.run_dir / name
            atomic_file.back_up(path, "replaced", files)
            replace_file(path, replay._rendered(replayed.snapshots, name), durable=True, files=files)
        return replayed

    monkeypatch.setattr(replay, "_write", write)
    with pytest.raises(Wrong, match="that replay replaced is kept"):
        explore(memory, "replay")


# -- faults that it found, each by itself


def test_a_mark_goes_before_its_stream_does(tmp_path: Path) -> None:
    """A re-analysis set the stream aside first: after a crash the old mark was held against the new stream."""
    with EventLog.open(tmp_path, run_id="r") as log:
        log.append(PhaseChanged(task_id="t"))
    (tmp_path / "run_info.json").write_text('{"run_id": "r"}')
    disk = RecordingFileSystem(tmp_path)
    RunRecorder.analyze(tmp_path, files=disk).close()
    kinds = [note.kind for note in disk.notes]
    renamed = kinds.index("name")
    assert disk.notes[renamed].name.name == "progress.evaluation-1.jsonl"  # type: ignore[union-attr]
    assert kinds[:renamed] == ["change", "change", "change", "fsync"]  # two slots and the note, then the disk


def test_a_tail_of_a_whole_line_is_still_a_tail(tmp_path: Path) -> None:
    """A line is there when its newline is: with a zero in its place it is set aside, not taken for a record."""
    with EventLog.open(tmp_path, run_id="r") as log:
        log.append(PhaseChanged(task_id="t"))
        log.append(PhaseChanged(task_id="t"))
    path = tmp_path / "progress.jsonl"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    (tmp_path / "progress.lock").unlink()
    texts, verdicts = accepted(tmp_path)
    assert len(texts) == 1 and verdicts == {"torn_tail": 1}


# -- the model of a disk


def test_the_model_keeps_what_was_synced_and_offers_the_rest(tmp_path: Path) -> None:
    """One file, one synced write, one not: durable bytes never vanish, the rest comes in every length."""
    disk = RecordingFileSystem(tmp_path)
    fd = disk.open(tmp_path / "f", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    disk.sync_folder(tmp_path)
    disk.write(fd, b"one\n")
    disk.fsync(fd)
    disk.write(fd, b"two\n")
    disk.close(fd)
    last = list(points(disk))[-1]
    contents = {make()["f"] for make in systematic(last)}
    assert {b"one\n" + b"two\n"[:length] for length in range(5)} <= contents
    assert b"one\n\0\0\0\0" in contents and all(content.startswith(b"one\n") for content in contents)
    rng = random.Random(1)
    assert all(at_random(last, rng)["f"].startswith(b"one\n") for _ in range(200))


def test_the_model_lets_names_and_data_part(tmp_path: Path) -> None:
    """A rename without the data, and the data without the rename."""
    (tmp_path / "f").write_bytes(b"old")
    disk = RecordingFileSystem(tmp_path)
    replace_file(tmp_path / "f", b"new", durable=False, files=disk)
    before_rename, after_rename = list(points(disk))[-2:]
    seen = {make().get("f") for make in systematic(after_rename)}
    assert {b"old", b"new", b""} <= seen
    assert {make()["f"] for make in systematic(before_rename)} == {b"old"}


def test_the_model_s_changes() -> None:
    """Writes beyond the end leave zeros; a cut write has its beginning, then what is asked for."""
    assert content_after(b"ab", [Write(4, b"x")]) == b"ab\0\0x"
    assert content_after(b"abcd", [Truncate(2), Write(2, b"z")]) == b"abz"
    file = File(b"ab", (Write(2, b"cdef"),))
    assert cut_at(file, 0, 2, "cut") == b"abcd" and cut_at(file, 0, 2, "zeros") == b"abcd\0\0"
    assert fingerprint({"a": b"x"}) != fingerprint({"a": b"", "b": b"x"})


def test_a_recorded_disk_ends_as_the_real_one(tmp_path: Path) -> None:
    """With every change the model's files are byte for byte those on the disk."""
    disk = RecordingFileSystem(tmp_path)
    request = {"benchmark": {"id": "b"}, "harness": {"id": "h"}, "environment": {"id": "e"}, "model": {"id": "m"}}
    with RunRecorder.create(tmp_path, request=request, file_log_level=None, files=disk) as run:
        run.finish("completed")
    last = list(points(disk))[-1]
    from tests.tools.crash.disk import names_after
    from tests.tools.crash.states import state_of

    state = state_of(last, names_after(last.names, last.pending_names), {})
    assert state == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert not verify_run(RunDir(tmp_path, "r")).counts.get("torn_tail") and scan(tmp_path).path.exists()
