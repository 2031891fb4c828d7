"""The catalog is a cache: whatever happens to runs, to it, or to the process that fills it, answers stay right."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventstore.errors import CompassError, OutputError, UsageError
from eventstore.history.catalog.catalog import default_file
from eventstore.history.sql import access
from eventstore.history.sql.access import CatalogChoice, open_history
from tests.tools import interrupting
from tests.tools.recorded import ROOT, RUNS

MEMORY = CatalogChoice(off=True)
VIEWS = (
    "runs",
    "events",
    "tasks",
    "attempts",
    "phases",
    "retries",
    "plans",
    "issues",
    "results",
    "metrics",
    "params",
    "logs",
    "artifacts",
    "damage",
)
STREAM = (ROOT / RUNS["r_retry2"] / "progress.jsonl").read_bytes()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Catalogs of tests don't land in the user's cache."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


def everything(root: Path, choice: CatalogChoice) -> dict[str, list[str]]:
    """All rows of all views, but for the life of runs, which depends on the clock."""
    connection = open_history([root], catalog=choice)
    left_out = {"runs": " EXCLUDE (life, life_evidence)"}
    left_out |= dict.fromkeys(("phases", "attempts"), " EXCLUDE (ended_by)")
    try:
        return {
            view: sorted(map(repr, connection.execute(f"SELECT *{left_out.get(view, '')} FROM {view}").fetchall()))
            for view in VIEWS
        }
    finally:
        connection.close()


def assert_current(root: Path) -> None:
    assert everything(root, CatalogChoice()) == everything(root, MEMORY)


def write_run(root: Path, key: str, stream: bytes) -> Path:
    path = root / key / "progress.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(stream)
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_stream_that_grows_at_any_place_is_gone_on_with(tmp_path: Path) -> None:
    """Torn tails, halves of lines, bursts: after each step the catalog is what reading everything gives."""
    path = write_run(tmp_path, "grows", b"")
    write_run(tmp_path, "other", STREAM)
    random, at = Random(3), 0
    while at < len(STREAM):
        step = random.choice([1, 50, 700, 20_000, 60_000])
        append(path, STREAM[at : at + step])
        at += step
        assert_current(tmp_path)


def test_only_what_was_appended_is_read(tmp_path: Path) -> None:
    """The watermark is a byte, and the bytes before it are not read again."""
    head = STREAM[: STREAM.rindex(b"\n", 0, 40_000) + 1]
    path = write_run(tmp_path, "run", head)
    done, _ = access.index(tmp_path)
    assert (done.read, done.appended, done.bytes_read) == (1, 0, len(head))
    append(path, STREAM[len(head) : len(head) + 900])
    done, _ = access.index(tmp_path)
    assert (done.read, done.appended, done.bytes_read) == (1, 1, 900)
    done, _ = access.index(tmp_path)
    assert (done.read, done.bytes_read) == (0, 0)


@pytest.mark.parametrize(
    "what", ["truncated", "rewritten", "same size", "removed", "moved", "replaced", "damaged", "new"]
)
def test_a_stream_that_did_anything_but_grow_is_read_anew(tmp_path: Path, what: str) -> None:
    """Also where size and name are the same: times and bytes tell."""
    half = STREAM[: STREAM.index(b"\n", 60_000) + 1]
    path = write_run(tmp_path, "a", half)
    write_run(tmp_path, "b", STREAM)
    assert_current(tmp_path)
    match what:
        case "truncated":
            os.truncate(path, 5000)
        case "rewritten":
            path.write_bytes(STREAM[STREAM.index(b"\n") + 1 :])
        case "same size":
            path.write_bytes(half.replace(b"arith-000", b"arith-999"))
        case "removed":
            shutil.rmtree(path.parent)
        case "moved":
            path.parent.rename(tmp_path / "c")
        case "replaced":
            os.replace(tmp_path / "b" / "progress.jsonl", path)
        case "damaged":
            append(path, b"garbage\n" + STREAM[len(half) :])
        case "new":
            write_run(tmp_path, "d", STREAM)
    assert_current(tmp_path)
    append(tmp_path / "b" / "progress.jsonl" if what != "replaced" else path, STREAM[:3000])
    assert_current(tmp_path)


def test_small_files_that_change_are_seen(tmp_path: Path) -> None:
    """A status, an error, a result that comes after the stream."""
    run = tmp_path / "run"
    shutil.copytree(ROOT / RUNS["r_kill_mid"], run)
    assert_current(tmp_path)
    (run / "run_info.json").write_text('{"status": "failed", "error": "gone"}')
    assert_current(tmp_path)
    details = next((run / "details").iterdir())
    shutil.copytree(next(details.iterdir()), details / "another--0")
    assert_current(tmp_path)
    (run / "run.log").write_text("14:00:00 INFO     a  b\n")
    assert_current(tmp_path)


def test_the_catalog_is_never_in_a_run_and_can_be_deleted(tmp_path: Path) -> None:
    """Deleting it loses nothing; a place inside a run is refused."""
    write_run(tmp_path, "run", STREAM)
    before = sorted(tmp_path.rglob("*"))
    assert_current(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    default_file(tmp_path).unlink()
    assert_current(tmp_path)
    with pytest.raises(UsageError, match="inside a run"):
        open_history([tmp_path], catalog=CatalogChoice(file=tmp_path / "run" / "x" / "catalog.duckdb"))


def test_catalogs_in_formats_of_the_past_go_with_the_first_build_of_a_new_one(tmp_path: Path) -> None:
    """A later version of the program leaves no dead files in the user's cache, and removes nobody else's."""
    write_run(tmp_path, "run", STREAM)
    file = default_file(tmp_path)
    file.parent.mkdir(parents=True)
    folder, _, rest = file.name.partition("-s")
    version, _, rest = rest.partition("-")
    older = [file.with_name(f"{folder}-s{int(version) - 1}-{rest}{ending}") for ending in ("", ".wal", ".lock")]
    others = [file.with_name(f"{'0' * 16}-s1-{rest}"), file.with_name(f"{folder}-s{int(version) + 1}-{rest}")]
    for path in (*older, *others):
        path.write_bytes(b"x")
    assert_current(tmp_path)
    assert not any(path.exists() for path in older) and all(path.exists() for path in others)


@pytest.mark.parametrize("content", [b"", b"junk" * 5000, b"\0" * 12_288, None])
def test_a_broken_catalog_is_built_again(tmp_path: Path, content: bytes | None) -> None:
    """Junk, zeros, a flipped bit: never a wrong answer, never a traceback."""
    write_run(tmp_path, "run", STREAM)
    assert_current(tmp_path)
    file = default_file(tmp_path)
    if content is None:
        data = bytearray(file.read_bytes())
        for place in range(4096, len(data), 4096):
            data[place + 100 : place + 108] = b"\xff" * 8
        content = bytes(data)
    file.write_bytes(content)
    assert_current(tmp_path)


def test_without_a_place_for_a_catalog_runs_are_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder that can't be made is told of, and the answer is the same."""
    write_run(tmp_path / "runs", "run", STREAM)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    problems: list[str] = []
    connection = open_history(
        [tmp_path / "runs"], catalog=CatalogChoice(), on_problem=lambda path, words: problems.append(words)
    )
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (STREAM.count(b"\n"),)
    connection.close()
    assert "there is no catalog" in problems[0]
    with pytest.raises(CompassError):
        open_history([tmp_path / "runs"], catalog=CatalogChoice(file=tmp_path / "file" / "c.duckdb"))


def test_without_refresh_the_catalog_answers_as_it_is(tmp_path: Path) -> None:
    """And where there is none yet, it is built."""
    path = write_run(tmp_path, "run", STREAM[:5000])
    still = CatalogChoice(refresh=False)
    first = everything(tmp_path, still)
    append(path, STREAM[5000:])
    assert everything(tmp_path, still) == first
    assert_current(tmp_path)


def test_a_refresh_while_somebody_reads_neither_waits_nor_disturbs(tmp_path: Path) -> None:
    """A reader keeps what it opened; the refresh replaces the file beneath it."""
    path = write_run(tmp_path, "run", STREAM[:5000])
    reader = open_history([tmp_path], catalog=CatalogChoice())
    before = reader.execute("SELECT count(*) FROM events").fetchall()
    done = subprocess.run(
        [sys.executable, "-c", f"from eventstore.history.sql import access; access.index({str(tmp_path)!r})"],
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=True,
    )
    assert done.returncode == 0
    append(path, STREAM[5000:])
    assert_current(tmp_path)
    assert reader.execute("SELECT count(*) FROM events").fetchall() == before
    reader.close()


def counts(root: Path) -> tuple[int, int, int]:
    """Events: how many, how many different, one more than the last number."""
    connection = open_history([root], catalog=CatalogChoice())
    try:
        sql = "SELECT count(*), count(DISTINCT seq), coalesce(max(seq), -1) + 1 FROM events"
        found = connection.execute(sql).fetchone()
        return tuple(found)  # type: ignore[return-value]
    finally:
        connection.close()


def test_while_a_writer_appends_no_event_is_missed_doubled_or_invented(tmp_path: Path) -> None:
    """Between a count of lines before and after, each answer is one whole prefix."""
    path = write_run(tmp_path, "run", b"")
    lines = STREAM.splitlines(keepends=True)
    written = 0

    def write() -> None:
        nonlocal written
        with path.open("ab", buffering=0) as file:
            for line in lines:
                file.write(line[:100])
                file.write(line[100:])
                written += 1
                time.sleep(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    answers = []
    while writer.is_alive():
        low = written
        count, different, last = counts(tmp_path)
        assert low <= count <= written + 1
        assert count == different == last
        answers.append(count)
    writer.join()
    assert counts(tmp_path)[0] == len(lines)
    assert answers == sorted(answers) and len(set(answers)) > 3


INDEX = "import sys; from eventstore.history.sql import access; access.index(sys.argv[1])"


def test_kill_during_index_never_leaves_a_wrong_answer(tmp_path: Path) -> None:
    """Killed at any moment, of a first build or of a refresh in place: the next answer is right."""
    random = Random(11)
    paths = [write_run(tmp_path, f"run{n}", STREAM[:20_000]) for n in range(12)]
    for number in range(int(os.environ.get("KILLS", "8"))):
        if number % 4 == 3:
            default_file(tmp_path).unlink(missing_ok=True)
        for path in random.sample(paths, 6):
            append(path, STREAM[:7000])
        process = subprocess.Popen(
            [sys.executable, "-c", INDEX, str(tmp_path)], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL
        )
        time.sleep(random.uniform(0.08, 0.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        wanted: dict[str, Any] = {}
        for choice in (CatalogChoice(), MEMORY):
            connection = open_history([tmp_path], catalog=choice)
            found = connection.execute("SELECT run_key, count(*), max(seq) FROM events GROUP BY ALL ORDER BY ALL")
            wanted[repr(choice)] = found.fetchall()
            connection.close()
        assert len({repr(rows) for rows in wanted.values()}) == 1
    assert_current(tmp_path)


STRUCK = """
import os, signal, sys
from importlib import import_module
when, module, *owners, name = sys.argv.pop(1).split(":")
home = import_module(module)
for owner in owners:
    home = getattr(home, owner)
original = getattr(home, name)
def struck(*arguments, **options):
    if when == "before":
        os.kill(os.getpid(), signal.SIGINT)
    answer = original(*arguments, **options)
    os.kill(os.getpid(), signal.SIGINT)
    return answer
setattr(home, name, struck)
from cli.main import main
main()
"""
"""The command, interrupted before or after it calls one function."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "place",
    [
        "eventstore.history.catalog.ingest:find_changes",
        "eventstore.history.catalog.catalog:create_tables",
        "eventstore.history.catalog.ingest:apply",
        "eventstore.history.catalog.catalog:Catalog:_publish",
        "eventstore.history.catalog.catalog:Catalog:attach",
    ],
)
def test_ctrl_c_during_index_is_a_word_and_leaves_nothing(
    tmp_path: Path, own_cache: Path, place: str, when: str
) -> None:
    """Wherever it strikes: exit code 130, no traceback, no half-built file, and the next build is right."""
    for number in range(10):
        write_run(tmp_path, f"run{number}", STREAM)
    command = [sys.executable, "-c", STRUCK, f"{when}:{place}", "index", str(tmp_path)]
    process = interrupting.start(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, words = process.communicate(timeout=interrupting.DEADLINE_SECONDS)
    assert (process.returncode, words) == (130, "interrupted\n")
    assert not list(own_cache.rglob("*.part*"))
    assert_current(tmp_path)


def test_ctrl_c_while_duckdb_works_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB makes a RuntimeError of whatever a signal's handler raises."""
    import duckdb

    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    connection = duckdb.connect()
    connection.execute("SELECT 1").fetchall()
    before = signal.signal(signal.SIGALRM, strike)
    try:
        with pytest.raises(KeyboardInterrupt), access._catalog_errors():
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            connection.execute("SELECT sum(hash(a.i + b.i)) FROM range(100000) a(i), range(200000) b(i)").fetchall()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        connection.close()


def test_two_processes_that_index_at_once_both_succeed(tmp_path: Path) -> None:
    """The second waits for the first, and finds nothing left to do."""
    for number in range(5):
        write_run(tmp_path, f"run{number}", STREAM)
    command = [sys.executable, "-c", INDEX, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=Path(__file__).parents[2]) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert_current(tmp_path)


def test_workers_read_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that share the reading change nothing but the time."""
    from eventstore.history.catalog import ingest

    monkeypatch.setattr(ingest, "WORKER_BYTES", 0)
    monkeypatch.setattr(ingest, "CHUNK_BYTES", 100_000)
    shutil.copytree(ROOT, tmp_path / "runs")
    told: list[tuple[int, int]] = []
    done, _ = access.index(tmp_path / "runs", workers=2, progress=lambda count, total: told.append((count, total)))
    assert told[-1] == (done.bytes_read, done.bytes_read)
    assert_current(tmp_path / "runs")


def test_a_stream_too_long_for_a_worker_is_read_where_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a worker wait in memory until all are read, so a stream of gigabytes is loaded a part at a time."""
    from eventstore.history.catalog import ingest, spool

    monkeypatch.setattr(ingest, "WORKER_BYTES", 0)
    monkeypatch.setattr(ingest, "SHARED_BYTES", len(STREAM) // 2)
    monkeypatch.setattr(spool, "SPOOL_BYTES", len(STREAM) // 4)
    write_run(tmp_path, "long", STREAM)
    write_run(tmp_path, "short", STREAM[: len(STREAM) // 3])
    loads = []
    load = spool.load_folder
    monkeypatch.setattr(spool, "load_folder", lambda *given: loads.append(given) or load(*given))
    access.index(tmp_path, workers=2)
    assert len(loads) > 1
    assert_current(tmp_path)


SCRIPT = """
from pathlib import Path
from eventstore.history.catalog import ingest
from eventstore.history.sql import access
ingest.WORKER_BYTES, ingest.CHUNK_BYTES = 0, 100_000
print("built", access.index(Path("runs"), workers=2)[0].read)
"""


def test_a_script_without_a_main_guard_builds_with_workers(tmp_path: Path) -> None:
    """The processes that read run nothing of the program that started them."""
    shutil.copytree(ROOT, tmp_path / "runs")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (done.stdout.split()[0], done.stdout.count("built"), done.stderr, done.returncode) == ("built", 1, "", 0)


def test_a_reading_process_imports_nothing_from_the_folder_it_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs come from strangers, and so may a `pickle.py` beside them."""
    from eventstore.history.catalog.workers import Readers

    for name in ("pickle.py", "msgspec.py"):
        (tmp_path / name).write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    with Readers(1, os.getcwd) as readers:
        assert readers.submit().result(30) == str(tmp_path)


def test_a_reading_process_that_is_killed_is_told_of() -> None:
    """A sentence, not a hang; what it raised by itself arrives as it is."""
    from eventstore.history.catalog.workers import Readers

    with Readers(1, os.abort) as readers, pytest.raises(OutputError, match="was killed"):
        readers.submit().result(30)
    with Readers(1, os.listdir) as readers, pytest.raises(FileNotFoundError):
        readers.submit("/there is no such folder").result(30)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_line_that_duckdb_refuses_costs_a_first_build_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """All that was loaded before it is undone with it, and comes again."""
    from eventstore.history.catalog import ingest

    monkeypatch.setattr(ingest, "WORKER_BYTES", 0)
    monkeypatch.setattr(ingest, "CHUNK_BYTES", 10_000)
    for number in range(6):
        twice = b', "status": null, "status": "a"}' if number == 4 else b"}"
        write_run(tmp_path, f"run{number}", STREAM.replace(b"}\n", twice + b"\n", 1))
    refused = []
    fill = ingest._fill
    monkeypatch.setattr(ingest, "_fill", lambda *given: refused.append(fill(*given)) or refused[-1])
    access.index(tmp_path, workers=workers)
    assert refused == [False]
    assert_current(tmp_path)


REQUEST = {section: {"id": "x"} for section in ("model", "benchmark", "harness", "environment")}


def test_a_sealed_stream_is_gone_on_with_and_its_chain_checked(tmp_path: Path) -> None:
    """While our own recorder writes: after each event the catalog is what reading everything gives."""
    from eventstore.format.events import PhaseChanged, TaskStarted
    from eventstore.recording.recorder import RunRecorder

    folder = tmp_path / "run"
    with RunRecorder.create(folder, request=REQUEST) as recorder:
        for number in range(12):
            recorder.append(TaskStarted(task_id=f"t{number}"))
            recorder.append(PhaseChanged(task_id=f"t{number}", attempt=1, phase="plan"))
            if number % 3 == 0:
                recorder.sync()
                assert_current(tmp_path)
        recorder.finish("completed")
    assert_current(tmp_path)
    connection = open_history([tmp_path], catalog=CatalogChoice())
    assert connection.execute("SELECT sealed, damaged, life FROM runs").fetchall() == [(True, 0, "finished")]
    connection.close()


def test_a_sealed_stream_that_lost_what_was_promised_is_damaged(tmp_path: Path) -> None:
    """The witness counts for a stream that was gone on with, as for one read whole."""
    from eventstore.format.events import TaskStarted
    from eventstore.recording.recorder import RunRecorder

    folder = tmp_path / "run"
    recorder = RunRecorder.create(folder, request=REQUEST)
    for number in range(5):
        recorder.append(TaskStarted(task_id=f"t{number}"))
    recorder.sync()
    assert_current(tmp_path)
    for number in range(5):
        recorder.append(TaskStarted(task_id=f"u{number}"))
    recorder.sync()
    stream = folder / "progress.jsonl"
    os.truncate(stream, stream.stat().st_size - 10)
    assert_current(tmp_path)
    connection = open_history([tmp_path], catalog=CatalogChoice())
    codes = {code for (code,) in connection.execute("SELECT code FROM damage").fetchall()}
    connection.close()
    assert "lost_acknowledged" in codes


def test_spool_files_of_killed_processes_are_removed_and_those_of_living_ones_stay() -> None:
    """They lie in shared memory where there is some, and nothing else would ever take them away."""
    from eventstore.history.catalog import spool

    code = "import os, signal; from eventstore.history.catalog import spool; print(spool.make_folder(), flush=True); "
    here = Path(__file__).parents[2]
    dead = subprocess.run(
        [sys.executable, "-c", code + "os.kill(os.getpid(), signal.SIGKILL)"], cwd=here, capture_output=True, text=True
    ).stdout.strip()
    with subprocess.Popen(
        [sys.executable, "-c", code + "input()"], cwd=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        living = process.stdout.readline().strip()
        mine = spool.make_folder()
        assert not Path(dead).exists() and Path(living).exists() and mine.exists()
        process.stdin.close()
    spool.remove_folder(mine)
    assert not mine.exists()
    spool.remove_folder(spool.make_folder())
    assert not Path(living).exists()
