"""Export to Parquet, for engines beyond one machine: a folder a view, partitioned as Hive does by benchmark and month.

    DIR/events/benchmark=toy_arith/month=2026-11/data.parquet
    DIR/manifest.json

A partition is written anew only when one of its runs changed; each file replaces its predecessor in one step, and the
manifest comes last. Rows are sorted by run and seq, compressed with zstd; JSON columns are text. The month is that of
the run's start in UTC.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import xxhash
from msgspec import Struct

from eventstore.errors import OutputError
from eventstore.history.catalog.catalog import quoted, with_signatures
from eventstore.history.rows.tables import VIEWS
from eventstore.run.directory import read_json_file
from eventstore.run.output_path import check_output_file, check_outside_runs
from eventstore.stream.atomic_file import replace_file

from . import access, guard

MANIFEST_NAME = "manifest.json"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_FORMAT = 1
_SORTED_BY = {
    "events": "run_key, seq",
    "phases": "run_key, seq",
    "retries": "run_key, seq",
    "logs": "run_key, line",
    "plans": "run_key, task_id, attempt, seq",
    "damage": 'run_key, file, "offset"',
    "params": "run_key, name",
}


class Exported(Struct):
    """What an export did: partitions written, left as they were, removed; rows written."""

    partitions: int = 0
    written: int = 0
    unchanged: int = 0
    removed: int = 0
    rows: int = 0
    seconds: float = 0.0


class _Partition(Struct):
    path: str
    run_keys: list[str]
    digest: str


def export_parquet(
    paths: Sequence[str | os.PathLike[str]],
    folder: Path,
    *,
    choice: access.CatalogChoice,
    on_problem: access.Report | None = None,
    overwrite: bool = False,
) -> Exported:
    """Bring the Parquet files in `folder` up to date with all runs at and below `paths`.

    Raises OutputError where a file can't be written, and UsageError where `folder` lies inside a run, or holds a file
    of an export's name that no export's manifest lists (unless `overwrite`).
    """
    check_outside_runs(folder)
    began = time.perf_counter()
    signatures = {key: seen for key, (_, seen) in with_signatures(access.runs_below(paths, None)).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with guard.interrupts():
            done = access.with_history(
                paths,
                lambda connection: _write(connection, folder, _partitions(connection, signatures), overwrite),
                catalog=choice,
                on_problem=on_problem,
                locked=False,
            )
    except OSError as error:
        raise OutputError(f"{folder}: can't be written: {error.strerror or error}", folder) from None
    except guard.BrokenCatalogError as error:
        raise OutputError(f"{folder}: can't be written: {error.message}", folder) from None
    done.seconds = time.perf_counter() - began
    return done


def _partitions(connection: Any, signatures: dict[str, str]) -> list[_Partition]:
    rows = connection.execute(
        "SELECT benchmark, strftime(started_at, '%Y-%m'), list(run_key || ' ' || coalesce(life, '') ORDER BY run_key),"
        " list(run_key ORDER BY run_key) FROM runs GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    partitions = []
    for benchmark, month, lives, keys in rows:
        path = f"benchmark={_value(benchmark)}/month={_value(month)}"
        told = "\n".join([str(_FORMAT), *lives, *(signatures.get(key, "") for key in keys)])
        partitions.append(_Partition(path, keys, xxhash.xxh3_128_hexdigest(told.encode())))
    return partitions


def _value(value: str | None) -> str:
    return NO_VALUE if not value else quote(value, safe="")


def _write(connection: Any, folder: Path, partitions: list[_Partition], overwrite: bool) -> Exported:
    known = (read_json_file(folder / MANIFEST_NAME).members or {}).get("partitions")
    before: dict[str, str] = known if isinstance(known, dict) else {}
    done = Exported(partitions=len(partitions))
    if not overwrite:
        _check_files(folder, partitions, before)
    for partition in partitions:
        files = [folder / view / partition.path / "data.parquet" for view in VIEWS]
        if before.get(partition.path) == partition.digest and all(file.exists() for file in files):
            done.unchanged += 1
            continue
        done.written += 1
        for view, file in zip(VIEWS, files, strict=True):
            done.rows += _write_file(connection, view, partition, file)
    current = {partition.path for partition in partitions}
    for gone in before.keys() - current:
        if _is_ours(gone):
            done.removed += 1
            for view in VIEWS:
                (folder / view / gone / "data.parquet").unlink(missing_ok=True)
    manifest = {
        "format": _FORMAT,
        "views": list(VIEWS),
        "partitions": {partition.path: partition.digest for partition in partitions},
    }
    replace_file(folder / MANIFEST_NAME, json.dumps(manifest, indent=2).encode() + b"\n", durable=True)
    return done


def _check_files(folder: Path, partitions: list[_Partition], before: dict[str, str]) -> None:
    """Raise UsageError for a file that is there and of which no manifest says that an export has written it."""
    if not before:
        check_output_file(folder / MANIFEST_NAME)
    for partition in partitions:
        if partition.path not in before:
            for view in VIEWS:
                check_output_file(folder / view / partition.path / "data.parquet")


def _is_ours(path: str) -> bool:
    """Whether a partition named by a manifest, which anybody may have written, is a place that we would write."""
    parts = path.split("/")
    return len(parts) == 2 and parts[0].startswith("benchmark=") and parts[1].startswith("month=")


def _write_file(connection: Any, view: str, partition: _Partition, file: Path) -> int:
    import duckdb

    file.parent.mkdir(parents=True, exist_ok=True)
    _remove_parts(file)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    left_out = " EXCLUDE (benchmark)" if view == "runs" else ""
    columns = connection.execute(f"DESCRIBE SELECT *{left_out} FROM {view}").fetchall()
    selected = ", ".join(f'CAST("{n}" AS VARCHAR) AS "{n}"' if kind == "JSON" else f'"{n}"' for n, kind, *_ in columns)
    try:
        row = connection.execute(
            f"COPY (SELECT {selected} FROM {view} WHERE run_key IN (SELECT unnest($keys))"
            f" ORDER BY {_SORTED_BY.get(view, 'ALL')}) TO {quoted(part)} (FORMAT parquet, COMPRESSION zstd)",
            {"keys": partition.run_keys},
        ).fetchone()
        os.replace(part, file)
    except duckdb.Error as error:
        if guard.is_broken(error):
            raise guard.BrokenCatalogError(str(error).splitlines()[0]) from None
        raise OutputError(f"{file}: can't be written: {str(error).splitlines()[0]}", file) from None
    finally:
        part.unlink(missing_ok=True)
    return int(row[0])


def _remove_parts(file: Path) -> None:
    """Remove what exports left that were killed while they wrote this file."""
    for part in file.parent.glob(f".{file.name}.*.part"):
        number = part.name.split(".")[-2]
        if number.isdecimal() and not process_exists(int(number)):
            part.unlink(missing_ok=True)


def process_exists(pid: int) -> bool:
    """Return whether this host has a process of this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
