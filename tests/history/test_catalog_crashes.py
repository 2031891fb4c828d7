"""The catalog after any crash, on a full disk, with bytes that changed: the answer is right, at worst built anew."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import duckdb
import pytest

from eventstore.errors import OutputError
from eventstore.history.catalog import ingest
from eventstore.history.catalog.catalog import Catalog
from eventstore.history.sql import access, guard
from eventstore.history.sql import answer as answering
from eventstore.history.sql.access import CatalogChoice
from eventstore.stream.filesystem import FileSystem
from tests.tools.commands import Command
from tests.tools.crash import catalog_judge, catalogs
from tests.tools.crash.calls import duckdb_library, led
from tests.tools.crash.catalogs import FILE_NAME, answers, refresh, truth
from tests.tools.crash.disk import Point, RecordingFileSystem, names_after, points
from tests.tools.crash.explorer import Exploration
from tests.tools.crash.judge import Wrong, lay_down
from tests.tools.crash.states import at_random, state_of
from tests.tools.recorded import ROOT, RUNS

SEEDS, SHARE = range(40, 43), 14
PROJECT = Path(__file__).parents[2]
STREAM = (ROOT / RUNS["r_retry2"] / "progress.jsonl").read_bytes()

watched = pytest.mark.skipif(not catalogs.is_possible(), reason="DuckDB's calls can be watched on 64-bit Linux only")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where the system has one."""
    import tempfile

    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        yield Path(folder)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs; the stream of `a` is the first third of a real one."""
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "a" / "progress.jsonl").write_bytes(STREAM[:40_000])
    (tmp_path / "runs" / "b" / "progress.jsonl").write_bytes(STREAM)
    (tmp_path / "store").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def file(runs: Path) -> Path:
    """Where the catalog is."""
    return runs.parent / "store" / FILE_NAME


def grow(runs: Path, to: int) -> None:
    path = runs / "a" / "progress.jsonl"
    with path.open("ab") as stream:
        stream.write(STREAM[path.stat().st_size : to])


def answer(runs: Path, file: Path) -> catalogs.Answers:
    return access.with_history([runs], answers, catalog=CatalogChoice(file=file))


# -- crash states


@watched
def test_a_sample_of_what_a_crash_leaves_of_a_catalog_gives_right_answers(memory: Path) -> None:
    """A first build, a refresh in place or on a copy, crashed between any two calls, DuckDB's own among them, and once
    more in the recovery; or with bytes that changed afterwards. Answers are right, unrefreshed and refreshed."""
    found = Exploration(memory)
    try:
        for number, seed in enumerate(SEEDS, 1):
            found.explore(seed, number * SHARE, share=SHARE, kinds=[catalogs.KIND])
    finally:
        found.close()
    assert found.total == len(SEEDS) * SHARE and not found.wrong


@watched
def test_rows_and_watermark_apart_are_found_out(runs: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The explorer sees a refresh that isn't one transaction: without this, its silence would prove nothing."""
    steps = [truth(runs)]
    refresh(runs, file, None, True)
    grow(runs, 60_000)
    steps.append(truth(runs))
    disk = RecordingFileSystem(file.parent)
    monkeypatch.setattr(ingest, "transaction", lambda connection: nullcontext())
    refresh(runs, file, disk, True)
    found, rng = list(points(disk)), random.Random(1)
    with pytest.raises(Wrong, match="right"):
        for _ in range(100):
            lay_down(at_random(rng.choice(found), rng), file.parent)
            catalog_judge.judge_catalog(runs, file.parent, steps, seed=1)


@watched
def test_duckdb_s_calls_are_all_seen(runs: Path, file: Path) -> None:
    """With every change the model's files are byte for byte those on the disk."""
    disk = RecordingFileSystem(file.parent)
    for how in ("in place", "in place", "beside a reader", "anew"):
        refresh(runs, file, disk, True, how)
        grow(runs, (runs / "a" / "progress.jsonl").stat().st_size + 10_000)
    last = list(points(disk))[-1]
    assert everything_kept(last) == {path.name: path.read_bytes() for path in file.parent.iterdir()}
    assert {note.kind for note in disk.notes} >= {"change", "fsync", "name", "sync_folder"}
    before = len(disk.notes)
    refresh(runs, file, None, True)
    assert len(disk.notes) == before


def everything_kept(point: Point) -> dict[str, bytes]:
    return state_of(point, names_after(point.names, point.pending_names), {})


@watched
def test_a_build_is_synced_before_its_name_is(runs: Path, file: Path) -> None:
    """What is published has its data: nothing of it is unsynced when it gets its name, and then the name is synced."""
    disk = RecordingFileSystem(file.parent)
    refresh(runs, file, disk, True)
    found = list(points(disk))
    at = next(n for n, note in enumerate(disk.notes) if note.name is not None and note.name.name == FILE_NAME)
    assert found[at].files[disk.notes[at].name.inode].pending == ()  # type: ignore[union-attr, index]
    assert disk.notes[at + 1].kind == "sync_folder"


def lay_down_killed_refresh(runs: Path, file: Path) -> list[catalogs.Answers]:
    """A catalog whose refresh in place was killed after its commit: its rows are in DuckDB's log.

    The right answers before and after that refresh.
    """
    steps = [truth(runs)]
    refresh(runs, file, None, True)
    disk = RecordingFileSystem(file.parent)
    grow(runs, 80_000)
    refresh(runs, file, disk, True)
    log = next(note.name.inode for note in disk.notes if note.name is not None and note.name.name.endswith(".wal"))
    commit = max(number for number, note in enumerate(disk.notes) if (note.kind, note.inode) == ("fsync", log))
    lay_down(everything_kept(list(points(disk))[commit + 1]), file.parent)
    assert file.with_name(f"{FILE_NAME}.wal").stat().st_size > 10_000
    return [*steps, truth(runs)]


@watched
def test_a_copy_for_a_refresh_beside_a_reader_has_the_log_of_a_killed_one(
    runs: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes were found with the log and applied to a copy without it: the rows in it were missing for ever."""
    steps = lay_down_killed_refresh(runs, file)
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    grow(runs, 120_000)
    steps.append(truth(runs))
    catalog_judge.judge_catalog(runs, file.parent, steps, seed=3)
    lay_down(before, file.parent)
    monkeypatch.setattr(Catalog, "_copy", lambda self: self.files.copy(self.file, self._part))
    with pytest.raises(Wrong, match="every view is right"):
        catalog_judge.judge_catalog(runs, file.parent, steps, seed=3)


@watched
@pytest.mark.parametrize("length", [88, 4096])
def test_a_log_cut_short_beside_a_reader(runs: Path, file: Path, length: int) -> None:
    """DuckDB 2.0.1, told to replay a torn log and to write none, overwrote its own memory: it crashed, or hung."""
    steps = lay_down_killed_refresh(runs, file)
    grow(runs, 120_000)
    steps.append(truth(runs))
    os.truncate(file.with_name(f"{FILE_NAME}.wal"), length)
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    with closing(catalog_judge.Judge()) as judge:
        for _ in range(8):  # it took up to four
            scenario = catalogs.CatalogScenario(RecordingFileSystem(file.parent), runs, steps)
            judge.judge(scenario, before, file.parent, 3, False)


@watched
def test_a_log_that_belongs_to_another_catalog_changes_nothing(runs: Path, file: Path) -> None:
    """Should one be left beside a file that went on without it, or that was built anew, DuckDB 2 knows it."""
    steps = lay_down_killed_refresh(runs, file)
    log = file.with_name(f"{FILE_NAME}.wal").read_bytes()
    grow(runs, 100_000)
    steps.append(truth(runs))
    for how in ("in place", "beside a reader", "anew"):
        refresh(runs, file, None, True, how)
        file.with_name(f"{FILE_NAME}.wal").write_bytes(log)
        catalog_judge.judge_catalog(runs, file.parent, steps, seed=0)


@watched
@pytest.mark.parametrize("how", ["in place", "beside a reader", "anew"])
def test_no_log_comes_back_beside_another_catalog(runs: Path, file: Path, how: str) -> None:
    """DuckDB removes a log and leaves the name unsynced: a crash kept it beside what came next, and DuckDB 1.5.6
    replayed it there. Its name is gone for good before the file changes or is replaced."""
    refresh(runs, file, None, True)
    disk = RecordingFileSystem(file.parent)
    for number in range(3):
        grow(runs, 50_000 + 10_000 * number)
        refresh(runs, file, disk, True, how if number else "in place")
    found = list(points(disk))
    for at, note in enumerate(disk.notes):
        published = found[at].names.get(FILE_NAME, 0)
        replaced = note.name is not None and note.name.name == FILE_NAME
        if replaced or (note.kind == "change" and note.inode == published):
            pending = [name for name in found[at].pending_names if name.name.endswith(".wal")]
            logs = {name.inode for name in pending if name.name == FILE_NAME + ".wal" and name.inode is not None}
            assert len(logs) <= (0 if replaced else 1), "a log that is gone may come back"


# -- bytes that changed


def damage(file: Path, at: int) -> None:
    with file.open("r+b") as catalog:
        catalog.seek(at)
        found = catalog.read(64)
        catalog.seek(at)
        catalog.write(bytes(byte ^ 255 for byte in found))


def test_a_damaged_block_is_noticed_whenever_it_is_read(runs: Path, file: Path) -> None:
    """DuckDB checks a block when it is read: while opening, or in the midst of an answer, which is then begun anew."""
    access.index(runs, file)
    sound, right = file.read_bytes(), truth(runs)
    tries = []
    for block in range(12_288, len(sound), 262_144):
        file.write_bytes(sound)
        damage(file, block + 2000)
        calls = 0

        def work(connection: Any) -> catalogs.Answers:
            nonlocal calls
            calls += 1
            return answers(connection)

        assert access.with_history([runs], work, catalog=CatalogChoice(file=file)) == right
        tries.append(calls)
        assert answer(runs, file) == right and calls <= 2
    assert 2 in tries


def late_block(file: Path) -> int:
    """A block without which the history opens, and the texts of payloads can't be read."""
    sound = file.read_bytes()
    try:
        for block in range(12_288, len(sound), 262_144):
            damage(file, block + 2000)
            try:
                with closing(duckdb.connect(str(file), read_only=True)) as connection:
                    for table in ("runs", "sources"):
                        connection.execute(f"SELECT sum(hash(r)) FROM {table} AS r").fetchall()
                    try:
                        connection.execute("SELECT sum(length(payload_text)) FROM events").fetchall()
                    except duckdb.Error as error:
                        assert guard.is_broken(error)
                        return block
            except duckdb.Error:
                pass
            file.write_bytes(sound)
    finally:
        file.write_bytes(sound)
    raise AssertionError("no such block")


def call(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cli.main import main; main()", *map(str, words)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("trusted", [(), ("--trusted",)])
def test_a_query_that_meets_a_damaged_block_is_answered(runs: Path, file: Path, trusted: tuple[str, ...]) -> None:
    """One answer, exit code 0, and the catalog is whole again; also where the catalog isn't brought up to date."""
    access.index(runs, file)
    sql = "SELECT count(*) AS n, sum(length(payload_text)) AS bytes FROM events"
    wanted = json.loads(call("query", sql, runs, "--no-catalog", "--json").stdout)
    for more in ((), ("--no-refresh",)):
        damage(file, late_block(file) + 2000)
        done = call("query", sql, runs, "--catalog", file, "--json", *more, *trusted)
        assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, wanted, "")
        assert access.index(runs, file)[0].read == 0
        with closing(duckdb.connect(str(file), read_only=True)) as connection:
            connection.execute("SELECT sum(hash(r)) FROM events AS r").fetchall()


@pytest.mark.parametrize("sound", [False, True])
def test_a_process_that_breaks_down_on_a_catalog(
    runs: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], sound: bool
) -> None:
    """DuckDB 1.5.6 reads some damaged blocks unchecked, and crashes: another process looks, and builds it anew."""
    access.index(runs, file)
    answered, looked = answering._answer, Catalog.is_sound

    def crash(*ignored: object) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def break_down(inquiry: answering.Inquiry, *others: Any, **options: Any) -> int:
        return answered(inquiry, *others, **options) if inquiry.catalog.rebuild else crash()

    monkeypatch.setattr(answering, "_answer", break_down)
    monkeypatch.setattr(Catalog, "is_sound", looked if sound else crash)
    command, before = Command(capfd), file.stat().st_ino
    code = command("query", "SELECT count(*) AS n FROM events", runs, "--catalog", file, "--json")
    if sound:
        assert code == 1 and "broke down" in command.document["error"]["message"] and file.stat().st_ino == before
    else:
        assert code == 0 and command.document[0]["n"] > 20 and file.stat().st_ino != before


def test_sql_that_only_looks_like_damage_keeps_the_catalog(runs: Path, file: Path) -> None:
    """The catalog is looked at before it is built anew, and the error is told."""
    access.index(runs, file)
    before = file.stat().st_ino
    done = call("query", "SELECT error('Corrupt database file') FROM runs", runs, "--catalog", file)
    assert done.returncode == 2 and "Corrupt" in done.stderr and "Traceback" not in done.stderr

    def work(connection: Any) -> None:
        raise duckdb.IOException("not the catalog's fault")

    with pytest.raises(duckdb.IOException):
        access.with_history([runs], work, catalog=CatalogChoice(file=file))
    assert file.stat().st_ino == before


# -- a full disk


class FullDisk(FileSystem):
    """After `room` bytes there is no space left."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.write = self._write  # type: ignore[method-assign, assignment]

    def _take(self, count: int) -> None:
        if count > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= count

    def _write(self, fd: int, content: bytes | memoryview) -> int:
        self._take(len(content))
        return os.write(fd, content)

    def pwrite(self, fd: int, content: bytes, offset: int) -> int:
        self._take(len(content))
        return os.pwrite(fd, content, offset)


@watched
@pytest.mark.parametrize("built", [False, True])
def test_a_full_disk_is_told_and_the_answer_comes_all_the_same(
    runs: Path, file: Path, monkeypatch: pytest.MonkeyPatch, built: bool
) -> None:
    """Wherever it happens: a clear error where a catalog was asked for, the runs read each time where it wasn't."""
    if built:
        access.index(runs, file)
        grow(runs, 60_000)
    right = truth(runs)
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    monkeypatch.setattr(access, "default_file", lambda root: file)
    rng = random.Random(1)
    for room in (0, 5000, 20_000, *(rng.randrange(3_000_000) for _ in range(3))):
        lay_down(before, file.parent)
        told: list[tuple[str, str]] = []
        with with_disk(monkeypatch, FullDisk(room)):
            found = access.with_history(
                [runs], answers, catalog=CatalogChoice(), on_problem=lambda *problem, told=told: told.append(problem)
            )
        assert found == right and (told == [] or "catalog" in told[-1][1])
        lay_down(before, file.parent)
        with with_disk(monkeypatch, FullDisk(room)), pytest.raises(OutputError, match="can't be"):
            access.index(runs, file, rebuild=True)
        assert answer(runs, file) == right


def with_disk(monkeypatch: pytest.MonkeyPatch, files: FileSystem) -> Any:
    """While this holds, the catalog and DuckDB write to that disk."""
    from contextlib import ExitStack

    stack = ExitStack()
    patch = stack.enter_context(monkeypatch.context())
    made: Callable[..., Catalog] = Catalog
    patch.setattr(access, "Catalog", lambda connection, file: made(connection, file, files))
    stack.enter_context(led(files, duckdb_library()))
    return stack
