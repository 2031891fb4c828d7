"""`compass-es query SQL [PATH…]`: SQL, or a canned question, over one or many runs."""

import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from eventstore.errors import CompassError, InputError, OutputError, UsageError

from . import output, rows

FORMATS = ("table", *rows.WRITERS, "parquet")
TERMINAL_ROWS = 200
_MAX_PROBLEMS = 20
_AGAIN = 75
"""No exit code of ours: the child asks to be called once more, after a look at the catalog."""
_QUESTION_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


class Call(Struct, frozen=True, kw_only=True):
    """What was asked for."""

    sql: str
    parameters: dict[str, str | None]
    paths: list[Path]
    format: str
    out: Path | None
    limit: int | None
    explain: bool
    trusted: bool
    as_json: bool
    timeout: float
    memory: str
    refresh: bool
    catalog: Path | None
    no_catalog: bool
    rebuild: bool = False
    again: bool = False


@click.command(name="query")
@click.argument("words", nargs=-1, metavar="SQL [PATH]...")
@click.option("--file", "sql_file", type=click.Path(path_type=Path), metavar="FILE", help="Read the SQL from FILE.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="The value of $NAME in the SQL, as text.")
@click.option("--list", "listing", is_flag=True, help="List the views with their columns, and the canned questions.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="A JSON array of row objects; the same as --format json.")
@click.option("--output", "-o", "out", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE.")
@click.option("--limit", type=click.IntRange(0), help=f"Rows of a table; {TERMINAL_ROWS} on a terminal. 0: all.")
@click.option("--explain", is_flag=True, help="Show DuckDB's plan instead of the answer.")
@click.option("--timeout", type=click.FloatRange(0.001), default=60.0, show_default=True, metavar="SECONDS")
@click.option("--memory", default="2GB", show_default=True, metavar="SIZE", help="Memory for the SQL.")
@click.option("--trusted", is_flag=True, help="Lift all limits: this SQL may read and write files and change settings.")
@click.option("--no-refresh", is_flag=True, help="Answer from the catalog as it is.")
@click.option("--catalog", type=click.Path(path_type=Path), metavar="FILE", help="Keep the catalog in FILE.")
@click.option("--no-catalog", is_flag=True, help="Read the runs into memory; keep nothing.")
def command(
    words: tuple[str, ...],
    sql_file: Path | None,
    params: tuple[str, ...],
    listing: bool,
    form: str,
    as_json: bool,
    out: Path | None,
    limit: int | None,
    explain: bool,
    timeout: float,
    memory: str,
    trusted: bool,
    no_refresh: bool,
    catalog: Path | None,
    no_catalog: bool,
) -> int:
    """Answer SQL over all runs at and below each PATH (here, if none is given).

    SQL is one reading statement of DuckDB, the name of a canned question, or - to read it from stdin. It can neither
    read nor write files, nor take more time or memory than allowed; --trusted lifts that for SQL of your own.
    """
    if listing:
        return _list(as_json)
    given = _parameters(params)
    sql, folders = _sql(words, sql_file)
    sql, parameters = _canned(sql, given)
    if form == "parquet" and out is None:
        raise UsageError("parquet is no text: name a file with --output")
    call = Call(
        sql=sql,
        parameters=parameters,
        paths=[Path(folder) for folder in folders],
        format="json" if as_json else form,
        out=out,
        limit=limit,
        explain=explain,
        trusted=trusted,
        as_json=as_json,
        timeout=timeout,
        memory=memory,
        refresh=not no_refresh,
        catalog=catalog,
        no_catalog=no_catalog,
    )
    return _ask_twice(call)


def _ask_twice(call: Call) -> int:
    """The exit code; where the catalog may be broken, once more, after it was looked at and, if need be, built anew."""
    from eventstore.history.sql.limits import BrokenDownError

    try:
        code = _ask(call)
    except BrokenDownError:
        if call.no_catalog or _is_sound(call):
            raise
        return _ask(replace(call, rebuild=True, again=True))
    if code != _AGAIN:
        return code
    return _ask(replace(call, rebuild=not _is_sound(call), again=True))


def _is_sound(call: Call) -> bool:
    """Whether the catalog can be read, found out in a process of its own: DuckDB may not survive it."""
    from eventstore.history.sql import access
    from eventstore.history.sql.limits import BrokenDownError, memory_bytes, run_limited

    def look(begin: Callable[[], None]) -> int:
        return int(not access.catalog_is_sound(call.paths, access.CatalogChoice(file=call.catalog)))

    try:
        return run_limited(look, timeout_seconds=call.timeout, memory=memory_bytes(call.memory)) == 0
    except BrokenDownError:
        return False


def _ask(call: Call) -> int:
    """The exit code; _AGAIN where the catalog may be broken, and nothing has been said yet."""
    if call.trusted:
        return _answer(call, lambda: None)
    from eventstore.history.sql.limits import memory_bytes, run_limited

    limit = memory_bytes(call.memory)
    return run_limited(lambda begin: _in_child(call, begin), timeout_seconds=call.timeout, memory=limit)


def _sql(words: tuple[str, ...], sql_file: Path | None) -> tuple[str, tuple[str, ...]]:
    """The SQL, and the paths that follow it."""
    if sql_file is not None:
        try:
            return sql_file.read_text("utf-8"), words
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{sql_file}: can't be read: {error}", sql_file) from None
    if not words:
        raise UsageError("there is no SQL: give it, the name of a canned question, --file FILE or - for stdin")
    if words[0] == "-":
        return sys.stdin.read(), words[1:]
    return words[0], words[1:]


def _parameters(params: tuple[str, ...]) -> dict[str, str]:
    given: dict[str, str] = {}
    for param in params:
        name, equals, value = param.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--param {param}: write NAME=VALUE")
        given[name] = value
    return given


def _canned(sql: str, given: dict[str, str]) -> tuple[str, dict[str, str | None]]:
    if not _QUESTION_NAME.fullmatch(sql.strip()):
        return sql, dict(given)
    from eventstore.history.sql import questions

    asked = questions.question(sql.strip())
    return asked.sql, questions.parameters(asked, given)


def _in_child(call: Call, begin: Callable[[], None]) -> int:
    """As `_answer`, ending with an exit code whatever happens: nobody above is there to catch an error."""
    try:
        return _answer(call, begin)
    except CompassError as error:
        try:
            output.fail(error, call.as_json)
        except SystemExit as ended:
            return int(ended.code or 0)
    except KeyboardInterrupt:
        output.say("interrupted")
        return output.INTERRUPTED


def _answer(call: Call, begin: Callable[[], None]) -> int:
    from eventstore.history.sql import access, ask, guard

    problems: list[str] = []
    try:
        connection = access.open_history(
            call.paths,
            catalog=access.CatalogChoice(
                file=call.catalog, off=call.no_catalog, refresh=call.refresh, rebuild=call.rebuild
            ),
            on_problem=lambda path, words: problems.append(f"{path}: {words}"),
            memory_limit=None if call.trusted else call.memory,
            locked=not call.trusted,
            timeout_seconds=None if call.trusted else call.timeout,
        )
    finally:
        _tell(problems)
    try:
        begin()
        if call.explain:
            click.echo(ask.explain(connection, call.sql, call.parameters))
            return output.OK
        return _write(ask.ask(connection, call.sql, call.parameters, trusted=call.trusted), call)
    except guard.BrokenCatalogError:
        if call.again or call.no_catalog:
            raise
        return _AGAIN
    finally:
        access.close(connection)


def _tell(problems: list[str]) -> None:
    for problem in problems[:_MAX_PROBLEMS]:
        output.say(output.clean(problem))
    if len(problems) > _MAX_PROBLEMS:
        output.say(f"… and {len(problems) - _MAX_PROBLEMS} more problems; the view damage has them")


def _write(answer: Any, call: Call) -> int:
    if call.format == "parquet" and call.out is not None:
        from eventstore.history.sql.ask import write_parquet

        output.say(f"{write_parquet(answer, call.out)} rows written to {output.clean(call.out)}")
    elif call.format == "table" and call.out is None:
        limit = TERMINAL_ROWS if call.limit is None and sys.stdout.isatty() else call.limit or None
        shown, more = rows.write_table(answer.names, answer.kinds, answer.rows, limit)
        if more:
            output.say(f"the first {shown} rows; --limit 0 shows all")
    else:
        _write_text(answer, call)
    return output.OK


def _write_text(answer: Any, call: Call) -> None:
    """Text to stdout or a file, and only once it is whole: an error that comes late leaves no half a document."""
    write = rows.WRITERS[call.format if call.format in rows.WRITERS else "markdown"]
    with tempfile.SpooledTemporaryFile(1 << 24, "w+", encoding="utf-8", errors="backslashreplace", newline="") as text:
        write(text, answer.names, answer.kinds, answer.rows)  # type: ignore[arg-type]
        text.seek(0)
        if call.out is None:
            shutil.copyfileobj(text, sys.stdout)
            return
        try:
            with open(call.out, "w", encoding="utf-8", newline="") as file:
                shutil.copyfileobj(text, file)
        except OSError as error:
            raise OutputError(f"{call.out}: can't be written: {error.strerror}", call.out) from None


def _list(as_json: bool) -> int:
    from eventstore.operations.reports.history import query_list_report

    listed = query_list_report()
    if as_json:
        output.print_json(listed)
        return output.OK
    for view, columns in listed.views.items():
        click.echo(f"{view}: {', '.join(columns)}")
    click.echo("")
    for question in listed.questions:
        named = " ".join(f"--param {p.name}={p.default or '…'}" for p in question.parameters)
        click.echo(f"{question.name}  {named}\n    {question.description}")
    return output.OK
