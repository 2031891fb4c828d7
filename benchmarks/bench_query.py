#!/usr/bin/env python3
"""Questions over a whole history: the catalog's build, refreshes and answers, beside engines on the JSON lines.

    python -m benchmarks.bench_query [--runs 100] [--events 10000] [--rounds 3] [--history DIR]

Jobs run in processes of their own; the digest is that of the answer, and jobs that answer differently stop the table.
`duckdb` reads the lines with an explicit schema of all thirteen columns; `polars` and `clickhouse` (by `chdb`) run
where they are installed.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import xxhash

from benchmarks import measure

COLUMNS = (
    "{run_id:'VARCHAR',event:'VARCHAR',timestamp:'DOUBLE',task_id:'VARCHAR',category:'VARCHAR',attempt:'BIGINT',"
    "phase:'VARCHAR',status:'VARCHAR',payload:'JSON',orchestration_id:'VARCHAR',request_key:'VARCHAR',"
    "request_name:'VARCHAR',request_index:'BIGINT'}"
)
COUNT = "SELECT event, count(*) FROM {} GROUP BY event ORDER BY event"
RETRIES = (
    "SELECT task_id, count(*) AS n FROM {} WHERE event = 'attempt_retry'"
    " GROUP BY task_id ORDER BY n DESC, task_id LIMIT 20"
)


def digest(rows: Any) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps([list(row) for row in rows]).encode())


def streams(root: Path) -> list[str]:
    return sorted(str(path) for path in root.glob("*/*/progress.jsonl"))


def timed(work: Callable[[], Any], root: Path) -> None:
    """Do the work and report its time with the digest of its rows."""
    files = streams(root)
    began = time.perf_counter()
    rows = work()
    seconds = time.perf_counter() - began
    events = sum(row[1] for row in rows) if rows and isinstance(rows[0][0], str) else 0
    measure.report(seconds=seconds, events=events, bytes=sum(map(os.path.getsize, files)), digest=digest(rows))


# -- building


def build_catalog(root: Path, place: Path) -> None:
    from eventstore.history.sql import access

    def work() -> Any:
        (place / "catalog.duckdb").unlink(missing_ok=True)
        access.index(root, place / "catalog.duckdb")
        return ask_catalog(root, place, COUNT)

    timed(work, root)


def build_duckdb(root: Path, place: Path) -> None:
    import duckdb

    def work() -> Any:
        (place / "plain.duckdb").unlink(missing_ok=True)
        connection = duckdb.connect(str(place / "plain.duckdb"))
        connection.execute("SET preserve_insertion_order=false")
        connection.execute(
            f"CREATE TABLE events AS SELECT * FROM read_ndjson(?, columns={COLUMNS}, hive_partitioning=false)",
            [streams(root)],
        )
        rows = connection.execute(COUNT.format("events")).fetchall()
        connection.close()
        return rows

    timed(work, root)


# -- asking


def ask_catalog(root: Path, place: Path, sql: str) -> Any:
    from eventstore.history.sql.access import CatalogChoice, open_history

    connection = open_history([root], catalog=CatalogChoice(file=place / "catalog.duckdb"))
    try:
        return connection.execute(sql.format("events")).fetchall()
    finally:
        connection.close()


def ask_duckdb(root: Path, place: Path, sql: str) -> Any:
    import duckdb

    source = f"read_ndjson({streams(root)}, columns={COLUMNS}, hive_partitioning=false)"
    return duckdb.execute(sql.format(source)).fetchall()


def ask_polars(root: Path, place: Path, sql: str) -> Any:
    import polars as pl

    text = pl.Utf8
    schema = {"run_id": text, "event": text, "timestamp": pl.Float64, "task_id": text}
    lines = pl.scan_ndjson(streams(root), schema=schema)
    if sql == COUNT:
        return lines.group_by("event").len().sort("event").collect().rows()
    retries = lines.filter(pl.col("event") == "attempt_retry").group_by("task_id").len(name="n")
    return retries.sort(["n", "task_id"], descending=[True, False]).limit(20).collect().rows()


def ask_clickhouse(root: Path, place: Path, sql: str) -> Any:
    import chdb

    structure = "event String, timestamp Float64, task_id Nullable(String)"
    lines = f"file('{root}/*/*/progress.jsonl', 'JSONEachRow', '{structure}')"
    text = str(chdb.query(sql.format(lines), "JSONCompactEachRow"))
    return [(name, int(count)) for name, count in map(json.loads, text.splitlines())]


def refresh(root: Path, place: Path) -> None:
    """A refresh that finds nothing new."""
    from eventstore.history.sql import access

    access.index(root, place / "catalog.duckdb")
    began = time.perf_counter()
    done, _ = access.index(root, place / "catalog.duckdb")
    measure.report(seconds=time.perf_counter() - began, events=done.events, bytes=0)


AD_HOC = {
    "ad hoc: events by kind": COUNT.format("events"),
    "ad hoc: most retried": RETRIES.format("events"),
    "ad hoc: text of payloads": "SELECT sum(length(payload_text)) FROM events",
    "ad hoc: one member": "SELECT payload->>'stage', count(*) FROM events WHERE event = 'attempt_retry' GROUP BY ALL",
    "ad hoc: phases by model": "SELECT model, phase, count(*) FROM phases JOIN runs USING (run_key) GROUP BY 1, 2",
}


def questions(root: Path, place: Path) -> None:
    """Every canned question and some others once, on an open catalog; their seconds go to stderr."""
    from eventstore.history.sql import questions as canned
    from eventstore.history.sql.access import CatalogChoice, open_history
    from eventstore.history.sql.ask import ask

    connection = open_history([root], catalog=CatalogChoice(file=place / "catalog.duckdb"))
    asked = {name: (canned.question(name).sql, canned.parameters(canned.question(name), {})) for name in canned.names()}
    total = 0.0
    for name, (sql, parameters) in {**asked, **{name: (sql, {}) for name, sql in AD_HOC.items()}}.items():
        began = time.perf_counter()
        list(ask(connection, sql, parameters).rows)
        seconds = time.perf_counter() - began
        total += seconds
        print(f"{name:28} {seconds:.3f} s", file=sys.stderr)
    connection.close()
    measure.report(seconds=total, events=0, bytes=0)


ENGINES: dict[str, Callable[[Path, Path, str], Any]] = {
    "catalog": ask_catalog,
    "duckdb": ask_duckdb,
    "polars": ask_polars,
    "clickhouse": ask_clickhouse,
}
PEERS = {"polars": "polars", "clickhouse": "chdb"}
JOBS: dict[str, Callable[[Path, Path], None]] = {
    "build-catalog": build_catalog,
    "build-duckdb": build_duckdb,
    "refresh": refresh,
    "questions": questions,
    **{
        f"{name}-{engine}": (lambda root, place, ask=ask, sql=sql: timed(lambda: ask(root, place, sql), root))
        for name, sql in (("count", COUNT), ("retries", RETRIES))
        for engine, ask in ENGINES.items()
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--events", type=int, default=10_000, help="events a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--history", type=Path, help="use these run directories; made if there are none")
    parser.add_argument("--job", choices=list(JOBS), help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        JOBS[given.job](given.history, given.place)
        return
    root = given.history or Path("benchmarks/data", f"history-{given.runs}x{given.events}")
    if not streams(root):
        from benchmarks import generate

        generate.main([str(root), "--runs", str(given.runs), "--events", str(given.events)])
    place = Path(tempfile.mkdtemp(prefix="compass-es-bench-"))
    try:
        compare(root, place, given.rounds)
    finally:
        shutil.rmtree(place)


def compare(root: Path, place: Path, rounds: int) -> None:
    def jobs(*names: str) -> dict[str, list[str]]:
        head = [sys.executable, "-m", "benchmarks.bench_query", "--history", str(root), "--place", str(place), "--job"]
        return {name: [*head, name] for name in names}

    print("# first build")
    measure.side_by_side(jobs("build-duckdb", "build-catalog"), rounds)
    sizes = [(place / name).stat().st_size / 1e6 for name in ("catalog.duckdb", "plain.duckdb")]
    print(f"catalog: {sizes[0]:.1f} MB; plain table: {sizes[1]:.1f} MB")
    engines = [name for name in ENGINES if name not in PEERS or find_spec(PEERS[name])]
    for name in ("count", "retries"):
        print(f"# {name}: opening, refreshing and asking the catalog, beside reading all lines")
        measure.side_by_side(jobs(*(f"{name}-{engine}" for engine in engines)), rounds)
    print("# nothing new to read; all canned questions on an open catalog")
    measure.side_by_side(jobs("refresh"), rounds)
    measure.side_by_side(jobs("questions"), rounds)
    JOBS["questions"](root, place)


if __name__ == "__main__":
    main()
