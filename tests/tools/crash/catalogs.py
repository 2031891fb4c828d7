"""The catalog: runs change, a catalog is brought up to date on a watched disk, and what a crash leaves of it is judged.

DuckDB's own calls are watched as well as ours (`calls.py`), so the states are those of the other scenarios: any part of
what was not synced, in any order, and any of the names. Beyond them *rot*: synced bytes that changed, or are gone.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eventstore.history.catalog.catalog import Catalog
from eventstore.history.sql import access
from eventstore.stream.scan import scan

from .calls import duckdb_library, led, slots
from .disk import Point, RecordingFileSystem, Write, content_after, names_after
from .scenarios import _damage, _earlier_session, _plain_lines
from .states import State, at_random, cut_at, folders, state_of

KIND = "catalog"
FILE_NAME = "c.duckdb"
PAGE = 4096
Answers = dict[str, dict[str, list[str]]]
"""View → run → what its rows add up to."""
VIEWS = {
    "runs": " EXCLUDE (life, life_evidence)",
    "events": "",
    "tasks": "",
    "attempts": " EXCLUDE (ended_by)",
    "phases": " EXCLUDE (ended_by)",
    "retries": "",
    "plans": "",
    "damage": "",
}
"""Views whose rows are compared, without what depends on the clock."""


def is_possible() -> bool:
    """Whether DuckDB's calls can be watched on this system."""
    return {"open", "pwrite", "write"} <= slots(duckdb_library()).keys()


@dataclass
class CatalogScenario:
    """What was recorded. `runs` are as they are after the last change; `steps` are right answers after each change."""

    disk: RecordingFileSystem
    runs: Path
    steps: list[Answers] = field(default_factory=list)
    kind: str = KIND


def answers(connection: Any) -> Answers:
    """What the rows of each run add up to in each view: their number, a hash of everything, lengths of payloads."""
    found: Answers = {}
    for view, left_out in VIEWS.items():
        lengths = ", sum(length(payload_text))" if view == "events" else ""
        rows = connection.execute(
            f"SELECT run_key, count(*), sum(hash(x)){lengths} FROM (SELECT *{left_out} FROM {view}) AS x GROUP BY 1"
        ).fetchall()
        found[view] = {str(key): [str(value) for value in values] for key, *values in rows}
    return found


def truth(runs: Path) -> Answers:
    """The right answers, from the runs alone; checked against a scan of each stream."""
    connection = access.open_history([runs], catalog=access.CatalogChoice(off=True))
    try:
        found = answers(connection)
        lines = dict(connection.execute("SELECT run_key, count(*) FROM events GROUP BY 1").fetchall())
    finally:
        connection.close()
    for folder in runs.iterdir():
        assert lines.get(folder.name, 0) == sum(len(block.lines) for block in scan(folder).blocks())
    return found


def catalog(folder: Path, rng: random.Random) -> CatalogScenario:
    """Refreshes of a catalog that there was or wasn't: in place, on a copy because somebody reads, or anew."""
    runs, store = folder / "runs", folder / "store"
    runs.mkdir()
    store.mkdir()
    for number in range(rng.randint(1, 3)):
        _new_run(runs / f"run{number}", rng)
    small = rng.random() < 0.7  # DuckDB's smallest blocks; its usual ones make states of megabytes
    if rng.random() < 0.5:
        refresh(runs, store / FILE_NAME, None, small)
    made = CatalogScenario(RecordingFileSystem(store), runs, [truth(runs)])
    for _ in range(rng.randint(1, 3)):
        for _ in range(rng.randint(1, 3)):
            _change(runs, rng)
        made.steps.append(truth(runs))
        how = rng.choice(("in place", "in place", "beside a reader", "anew"))
        refresh(runs, store / FILE_NAME, made.disk, small, how)
    return made


def refresh(runs: Path, file: Path, disk: RecordingFileSystem | None, small: bool, how: str = "in place") -> None:
    """Bring a catalog up to date, watched by `disk`."""
    connection = access._open(None, 1)
    if small:
        connection.execute("SET default_block_size=16384")
    made = Catalog(connection, file, *([] if disk is None else [disk]))
    if how == "beside a reader":
        made._open_for_writing = lambda: False  # type: ignore[method-assign]
    with ExitStack() as stack:
        if disk is not None:
            stack.enter_context(led(disk, duckdb_library()))
        made.refresh(list(access.runs_below([runs], None)), rebuild=how == "anew")
        connection.close()


def _new_run(folder: Path, rng: random.Random) -> None:
    folder.mkdir()
    if rng.random() < 0.5:
        _earlier_session(folder, rng, rng.randint(0, 30))
    else:
        (folder / "progress.jsonl").write_bytes(_plain_lines(rng, rng.randint(1, 60)))
    if rng.random() < 0.3:
        (folder / "run_info.json").write_bytes(b'{"run_id": "r", "status": "running"}\n')


def _change(runs: Path, rng: random.Random) -> None:
    """A run is new or gone; a stream grows, loses its end, is damaged or written anew."""
    there = sorted(path for path in runs.iterdir())
    chosen = rng.choice(there)
    stream = chosen / "progress.jsonl"
    match rng.choice(("grows", "grows", "grows", "new", "gone", "shorter", "damaged", "anew")):
        case "new":
            _new_run(runs / f"run{rng.randrange(10**9)}", rng)
        case "gone" if len(there) > 1:
            for path in chosen.iterdir():
                path.unlink()
            chosen.rmdir()
        case "shorter":
            stream.write_bytes(stream.read_bytes()[: -rng.randint(1, 200)])
        case "damaged" if stream.read_bytes().count(b"\n") > 1:
            stream.write_bytes(_damage(stream.read_bytes(), rng))
        case "anew":
            stream.write_bytes(_plain_lines(rng, rng.randint(1, 60)))
        case _:
            with stream.open("ab") as file:
                file.write(_plain_lines(rng, rng.choice((3, 20, 200))))


# -- states


def checks_every_block() -> bool:
    """Whether this DuckDB notices any changed byte; 1.5 takes some blocks unchecked, and may crash."""
    import duckdb

    return not duckdb.__version__.startswith("1.")


def states(found: list[Point], rng: random.Random, rot: bool = True) -> Iterator[tuple[Point, State]]:
    """First every subset of names where one changed, then without end, at chance, from all points."""
    rot = rot and checks_every_block()
    for point in found:
        if point.renamed:
            yield from ((point, make()) for make in folders(point))
    unsynced = [point for point in found if point.pending_names or any(f.pending for f in point.files.values())]
    while True:
        point = rng.choice(unsynced or found)
        yield point, at_random(point, rng)
        yield point, _torn_at_a_page(point, rng)
        if rot:
            yield point, _rotten(rng.choice(found), rng)


def _torn_at_a_page(point: Point, rng: random.Random) -> State:
    """All but the last write of one file, and of that a prefix: at any byte, or near the end of a page."""
    names = names_after(point.names, point.pending_names)
    torn = [(inode, file) for inode, file in point.files.items() if file.pending]
    if not torn:
        return state_of(point, names, {})
    inode, file = rng.choice(torn)
    count = rng.randrange(len(file.pending))
    change = file.pending[count]
    length = 0
    if isinstance(change, Write) and change.data:
        length = rng.randrange(len(change.data))
        if rng.random() < 0.5:
            length = min(len(change.data), max(0, length // PAGE * PAGE + rng.randint(-2, 2)))
    content = cut_at(file, count, length, rng.choice(("cut", "zeros", "stale")))
    later = [change for change in file.pending[count + 1 :] if rng.random() < 0.5]
    return state_of(point, names, {inode: content_after(content, later)})


def _rotten(point: Point, rng: random.Random) -> State:
    """All that was written, with a page of zeros or rubbish, flipped bits, or without an end, in one or two files."""
    state = state_of(point, names_after(point.names, point.pending_names), {})
    there = [name for name, content in state.items() if content]
    for name in rng.sample(there, min(len(there), rng.randint(1, 2))):
        content = bytearray(state[name])
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(content))
            page = at // PAGE * PAGE
            match rng.choice(("zeros", "rubbish", "flip", "flip", "block", "end")):
                case "zeros":
                    content[page : page + PAGE] = bytes(len(content[page : page + PAGE]))
                case "rubbish":
                    content[page : page + PAGE] = rng.randbytes(len(content[page : page + PAGE]))
                case "block":
                    content[page : page + 16 * PAGE] = bytes(len(content[page : page + 16 * PAGE]))
                case "end" if at > 0:
                    del content[rng.choice((at, page or at)) :]
                case _:
                    content[at] ^= 1 << rng.randrange(8)
        state[name] = bytes(content)
    return state
