"""What keeps a stranger's SQL inside: settings locked, one reading statement, bound before it runs.

After `lock_down` SQL can neither read nor write a file, load an extension, reach a network nor change a setting. The
statement gate alone would not do: in DuckDB 2 a COPY or INSERT inside WITH still counts as a SELECT, and only binding
the statement below DESCRIBE refuses it. Memory and time are limited from outside, by the process (see answer.py):
DuckDB's own limits don't reach into one big function call.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from eventstore.errors import QueryError
from eventstore.history.rows.tables import VIEWS

from .limits import MAX_SPILLED_BYTES, LimitError

READING = ("SELECT", "MULTI")
"""Statement types that only read; MULTI is what a PIVOT is taken apart into."""
_PLACE = re.compile(r"\n*LINE (\d+): (.*)\n( *)\^.*", re.DOTALL)
_KIND = re.compile(r"^[A-Za-z]+(?: [A-Za-z]+)? Error: ")
_UNKNOWN_NAME = re.compile(r'(?:name|column|function with name) "?([\w.]+)"?', re.IGNORECASE)


class SqlError(QueryError):
    """SQL that doesn't parse, bind, or is not allowed. `line` and `column` count from 1, None where not known."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        where = f"line {line}, column {column}: " if line is not None else ""
        super().__init__(where + message)
        self.line, self.column = line, column


class BrokenCatalogError(SqlError):
    """DuckDB could not read what it had stored, or broke down: the catalog may be damaged, and is worth a look."""

    kind = "broken"


def is_broken(error: BaseException) -> bool:
    """Return whether an error may come from a damaged database file: DuckDB checks a block only when it is read.

    A checksum that doesn't match is an error for which DuckDB's binding has no class of its own.
    """
    import duckdb

    kinds = (
        BrokenCatalogError,
        duckdb.IOException,
        duckdb.InternalException,
        duckdb.FatalException,
        duckdb.SerializationException,
    )
    return isinstance(error, kinds) or type(error) is duckdb.Error


def settings(memory_limit: str | None, threads: int | None = None) -> dict[str, str | int]:
    """Settings with which a connection is opened; spilling goes to a private folder that DuckDB removes again."""
    wanted: dict[str, str | int] = {
        "temp_directory": str(Path(tempfile.gettempdir(), f"compass-es-{next(tempfile._get_candidate_names())}")),  # type: ignore[attr-defined]
        "max_temp_directory_size": f"{MAX_SPILLED_BYTES}B",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
        "max_expression_depth": 250,
    }
    if memory_limit is not None:
        wanted["memory_limit"] = memory_limit
    if threads is not None:
        wanted["threads"] = threads
    return wanted


def lock_down(connection: Any, timeout_seconds: float | None = None) -> None:
    """From here on nothing outside the open databases can be reached, and no setting can be changed back."""
    if timeout_seconds is not None:
        connection.execute(f"SET max_execution_time={max(1, int(timeout_seconds * 1000))}")
    connection.execute("SET enable_external_access=false")
    connection.execute("SET lock_configuration=true")


def check(connection: Any, sql: str, parameters: Mapping[str, Any] | None = None) -> Any:
    """Return the one reading statement in `sql`, bound. Raises SqlError with the place for anything else."""
    statement = single_statement(connection, sql)
    try:
        kind = statement.type.name
    except Exception:  # a type that this binding has no name for: none of those reads
        kind = "unknown"
    if kind not in READING:
        raise SqlError(f"only a statement that reads is allowed, and this one is {_article(kind)}; see --trusted")
    try:
        connection.execute("DESCRIBE\n" + statement.query, _used(statement, parameters)).fetchall()
    except Exception as error:
        raise translate(connection, error, lines_before=1) from None
    return statement


def single_statement(connection: Any, sql: str) -> Any:
    """Return the one statement in `sql`. Raises SqlError with the place."""
    try:
        statements = connection.extract_statements(sql)
    except Exception as error:
        raise translate(connection, error) from None
    if not statements:
        raise SqlError("there is no SQL")
    if len(statements) > 1:
        raise SqlError(f"one statement at a time, and these are {len(statements)}")
    return statements[0]


def bind(statement: Any, parameters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the parameters that a statement names. Raises SqlError for one that is missing or that it doesn't know."""
    wanted, given = set(statement.named_parameters), dict(parameters or {})
    missing, unknown = sorted(wanted - given.keys()), sorted(given.keys() - wanted)
    if missing:
        raise SqlError(f"the parameter {missing[0]} has no value: --param {missing[0]}=…")
    if unknown:
        raise SqlError(f"there is no parameter {unknown[0]} in the SQL{_listing(sorted(wanted))}")
    return given or None


def _used(statement: Any, parameters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return bind(statement, parameters)


def _listing(names: list[str]) -> str:
    return f"; it has {', '.join(names)}" if names else ""


def _article(kind: str) -> str:
    return "of another kind" if kind == "unknown" else f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is what DuckDB makes of an exception that a signal's handler raised."""
    return isinstance(error, RuntimeError) and "interrupted" in str(error)


@contextmanager
def interrupts() -> Iterator[None]:
    """Ctrl-C, which DuckDB reports as a RuntimeError, is KeyboardInterrupt again."""
    try:
        yield
    except RuntimeError as error:
        raise (KeyboardInterrupt() if is_interrupt(error) else error) from None


def translate(connection: Any, error: Exception, lines_before: int = 0) -> BaseException:
    """DuckDB's error as one sentence with line, column and the nearest name; an interrupt as KeyboardInterrupt."""
    import duckdb

    if isinstance(error, SqlError):
        return error
    if is_interrupt(error):
        return KeyboardInterrupt()
    if not isinstance(error, duckdb.Error | RuntimeError | ValueError | TypeError):
        return error
    if isinstance(error, duckdb.OutOfMemoryException):
        return LimitError("the SQL needs more memory than it is allowed; see --memory")
    if "maximum execution time" in str(error):
        return LimitError("the time is up: the SQL ran longer than it is allowed; see --timeout")
    words, line, column = _split(str(error), lines_before)
    if is_broken(error):
        return BrokenCatalogError(words)
    return SqlError(words + _nearest(connection, words), line, column)


def _split(message: str, lines_before: int) -> tuple[str, int | None, int | None]:
    found = _PLACE.search(message)
    words = _KIND.sub("", message[: found.start()] if found else message)
    words = " ".join(part for part in words.split("\n") if part.strip()).replace("! Did", ". Did")
    if found is None:
        return words, None, None
    head = len(f"LINE {found[1]}: ")
    return words, max(1, int(found[1]) - lines_before), max(1, len(found[3]) - head + 1)


def _nearest(connection: Any, words: str) -> str:
    """Return a guess at what was meant, where DuckDB itself made none."""
    if "Did you mean" in words or "Candidate" in words:
        return ""
    found = _UNKNOWN_NAME.search(words)
    if found is None or "not" not in words:
        return ""
    try:
        rows = connection.execute("SELECT DISTINCT column_name FROM duckdb_columns() WHERE NOT internal").fetchall()
    except Exception:
        rows = []
    names = [*VIEWS, *(name for (name,) in rows)]
    close = get_close_matches(found[1].lower(), names, 3, 0.5)
    return f" Did you mean {' or '.join(close)}?" if close else ""
