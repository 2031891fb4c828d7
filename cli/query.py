"""`compass-es query SQL [PATH…]`: SQL, or a canned question, over one or many runs."""

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from eventstore.errors import InputError, OutputError, UsageError

from . import output, rows

if TYPE_CHECKING:
    from eventstore.history.sql.questions import Question

FORMATS = ("table", "json", "jsonl", "csv", "markdown", "parquet")
TERMINAL_ROWS = 200
_MAX_PROBLEMS = 20
_QUESTION_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


class Target(Struct, frozen=True, kw_only=True):
    """Where an answer goes, and in which form; `limit` is the number of rows of a table, 0 for all."""

    format: str
    out: Path | None
    limit: int | None


@click.command(name="query")
@click.argument("words", nargs=-1, metavar="SQL [PATH]...")
@click.option("--file", "sql_file", type=click.Path(path_type=Path), metavar="FILE", help="Read the SQL from FILE.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="The value of $NAME in the SQL, as text.")
@click.option("--list", "listing", is_flag=True, help="List the views with their columns, and the canned questions.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="A JSON array of row objects; the same as --format json.")
@click.option("--masked", is_flag=True, help="Mask credentials in the answer. Canned questions always do.")
@click.option(
    "--raw-csv", is_flag=True, help="CSV with texts as they are, also what a spreadsheet takes for a formula."
)
@click.option("--output", "-o", "out", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it is there.")
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
    masked: bool,
    raw_csv: bool,
    out: Path | None,
    overwrite: bool,
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

    SQL of your own sees the records as they are: payloads may hold credentials, and the answer is not masked unless
    --masked is given.
    """
    if listing:
        return _list(as_json)
    given = _parameters(params)
    sql, folders = _sql(words, sql_file)
    question = _canned(sql)
    parameters = _values(question, given)
    masked = masked or question is not None
    if raw_csv and form != "csv":
        raise UsageError("--raw-csv says how CSV is written: give --format csv, too")
    if form == "parquet" and out is None:
        raise UsageError("parquet is no text: name a file with --output")
    from eventstore.history.sql.access import CatalogChoice
    from eventstore.history.sql.answer import Delivery, Inquiry, answer

    form = "json" if as_json else "raw csv" if raw_csv else form
    target = Target(format=form, out=out, limit=limit)
    inquiry = Inquiry(
        sql=sql if question is None else question.sql,
        parameters=parameters,
        paths=[Path(folder) for folder in folders],
        catalog=CatalogChoice(file=catalog, off=no_catalog, refresh=not no_refresh),
        timeout_seconds=timeout,
        memory=memory,
        out=out,
        overwrite=overwrite,
        trusted=trusted,
        explain=explain,
        question=question,
        given=given,
    )
    delivery = Delivery(
        answer=lambda found: _write(_masked(found) if masked else found, target),
        plan=_print_plan,
        problems=_tell,
        error=lambda error: output.exit_code_of(error, as_json),
    )
    return answer(inquiry, delivery)


def _print_plan(plan: str) -> int:
    click.echo(plan)
    return output.OK


def _sql(words: tuple[str, ...], sql_file: Path | None) -> tuple[str, tuple[str, ...]]:
    """Return the SQL, and the paths that follow it."""
    if sql_file is not None:
        try:
            return sql_file.read_text("utf-8"), words
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{sql_file}: can't be read: {error}", sql_file) from None
    if not words:
        raise UsageError("there is no SQL: give it, the name of a canned question, --file FILE or - for stdin")
    if words[0] != "-":
        return output.utf8_text(words[0], "the SQL"), words[1:]
    try:
        return sys.stdin.buffer.read().decode("utf-8"), words[1:]
    except UnicodeDecodeError as error:
        raise UsageError(f"the SQL: is not UTF-8 from byte {error.start} on") from None


def _parameters(params: tuple[str, ...]) -> dict[str, str]:
    given: dict[str, str] = {}
    for param in params:
        name, equals, value = output.utf8_text(param, f"--param {output.clean(param)}").partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--param {param}: write NAME=VALUE")
        given[name] = value
    return given


def _canned(sql: str) -> "Question | None":
    """Return the canned question that was named instead of SQL, if one was. Raises UsageError for an unknown name."""
    if not _QUESTION_NAME.fullmatch(sql.strip()):
        return None
    from eventstore.history.sql import questions

    return questions.question(sql.strip())


def _values(asked: "Question | None", given: dict[str, str]) -> dict[str, str | None]:
    if asked is None:
        return dict(given)
    from eventstore.history.sql import questions

    return questions.parameters(asked, given)


def _masked(answer: Any) -> Any:
    """Return the same answer, each row masked as it comes."""
    from eventstore.operations.masking import mask_row

    return replace(answer, rows=(mask_row(answer.names, answer.kinds, row) for row in answer.rows))


def _tell(problems: list[str]) -> None:
    for problem in problems[:_MAX_PROBLEMS]:
        output.say(output.clean(problem))
    if len(problems) > _MAX_PROBLEMS:
        output.say(f"… and {len(problems) - _MAX_PROBLEMS} more problems; the view damage has them")


def _write(answer: Any, target: Target) -> int:
    if target.format == "parquet" and target.out is not None:
        from eventstore.history.sql.ask import write_parquet

        output.say(f"{write_parquet(answer, target.out)} rows written to {output.clean(target.out)}")
    elif target.format == "table" and target.out is None:
        limit = TERMINAL_ROWS if target.limit is None and sys.stdout.isatty() else target.limit or None
        shown, more = rows.write_table(answer.names, answer.kinds, answer.rows, limit)
        if more:
            output.say(f"the first {shown} rows; --limit 0 shows all")
    else:
        _write_text(answer, target)
    return output.OK


def _write_text(answer: Any, target: Target) -> None:
    """Text to stdout or a file, and only once it is whole: an error that comes late leaves no half a document."""
    write = rows.WRITERS[target.format if target.format in rows.WRITERS else "markdown"]
    with tempfile.SpooledTemporaryFile(1 << 24, "w+", encoding="utf-8", errors="backslashreplace", newline="") as text:
        write(text, answer.names, answer.kinds, answer.rows)  # type: ignore[arg-type]
        text.seek(0)
        if target.out is None:
            shutil.copyfileobj(text, sys.stdout)
            return
        try:
            with open(target.out, "w", encoding="utf-8", newline="") as file:
                shutil.copyfileobj(text, file)
        except OSError as error:
            raise OutputError(f"{target.out}: can't be written: {error.strerror}", target.out) from None


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
