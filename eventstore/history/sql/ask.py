"""Asking a history: one statement, checked and bound, its rows in batches."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from eventstore.errors import OutputError

from . import guard
from .limits import MAX_SPILLED_BYTES, LimitError

BATCH = 1000


class Answer(Struct):
    """Names and DuckDB types of the columns, and the rows, read as they are asked for."""

    names: list[str]
    kinds: list[str]
    rows: Iterator[tuple[Any, ...]]


def ask(connection: Any, sql: str, parameters: Mapping[str, Any] | None = None, *, trusted: bool = False) -> Answer:
    """Return the answer to one statement. Raises guard.SqlError; so does reading the rows, where an error comes late.

    Without `trusted` only a statement that reads is run; the connection must have been locked.
    """
    statement = guard.single_statement(connection, sql) if trusted else guard.check(connection, sql, parameters)
    try:
        connection.execute(statement, guard.bind(statement, parameters))
        described = connection.description or []
    except Exception as error:
        raise guard.translate(connection, error) from None
    return Answer([column[0] for column in described], [str(column[1]) for column in described], _rows(connection))


def explain(connection: Any, sql: str, parameters: Mapping[str, Any] | None = None) -> str:
    """DuckDB's plan of one reading statement, as text."""
    statement = guard.check(connection, sql, parameters)
    rows = connection.execute("EXPLAIN\n" + statement.query, guard.bind(statement, parameters)).fetchall()
    return "\n".join(text for _, text in rows)


def _rows(connection: Any) -> Iterator[tuple[Any, ...]]:
    while True:
        try:
            batch = connection.fetchmany(BATCH)
        except Exception as error:
            raise guard.translate(connection, error) from None
        if not batch:
            return
        yield from batch


def write_parquet(answer: Answer, path: Path) -> int:
    """Write an answer as a Parquet file, replaced in one step, and return the number of rows.

    The guarded connection may not write, so rows go through a spool to one that has never seen the SQL. Columns of
    types that have no plain form in JSON arrive as text. Raises OutputError.
    """
    import duckdb

    kinds = [kind if _is_plain(kind) else "VARCHAR" for kind in answer.kinds]
    encoder = msgspec.json.Encoder(enc_hook=str, decimal_format="string")
    count = written = 0
    part = part_of(path, os.getpid())
    with tempfile.NamedTemporaryFile("wb", prefix="compass-es-", suffix=".jsonl") as spool:
        for row in answer.rows:
            cells = {str(n): _cell(value, kinds[n]) for n, value in enumerate(row) if value is not None}
            written += spool.write(encoder.encode(cells) + b"\n")
            if written > MAX_SPILLED_BYTES:
                raise LimitError(f"the answer takes more than {MAX_SPILLED_BYTES} bytes as text; ask for less of it")
            count += 1
        spool.flush()
        columns = ", ".join(f"'{n}': '{kind}'" for n, kind in enumerate(kinds))
        selected = ", ".join(f'"{n}" AS "{name.replace(chr(34), chr(34) * 2)}"' for n, name in enumerate(answer.names))
        connection = duckdb.connect(":memory:")
        try:
            connection.execute(
                f"COPY (SELECT {selected} FROM read_ndjson({_quoted(spool.name)}, columns={{{columns}}}, "
                f"maximum_object_size=268435456)) TO {_quoted(str(part))} (FORMAT parquet, COMPRESSION zstd)"
            )
            part.replace(path)
        except (duckdb.Error, OSError) as error:
            raise OutputError(f"{path}: can't be written: {str(error).splitlines()[0]}", path) from None
        finally:
            connection.close()
            part.unlink(missing_ok=True)
    return count


def part_of(path: Path, pid: int) -> Path:
    """Return the file that a process writes before it gets the name `path`."""
    return path.with_name(f".{path.name}.{pid}.part")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_PLAIN = (
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
    "FLOAT",
    "DOUBLE",
    "VARCHAR",
    "DATE",
    "TIMESTAMP",
)


def _is_plain(kind: str) -> bool:
    return kind in _PLAIN or kind.startswith("DECIMAL(")


def _cell(value: Any, kind: str) -> Any:
    if kind in ("DOUBLE", "FLOAT"):
        return value if value == value and abs(value) != float("inf") else str(value)  # noqa: PLR0124 - NaN
    if kind == "VARCHAR" and not isinstance(value, str):
        nested = isinstance(value, dict | list | tuple)
        return msgspec.json.encode(value, enc_hook=str).decode() if nested else str(value)
    return value
