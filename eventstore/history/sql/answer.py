"""One question answered: in a process of its own unless it is trusted, and once more where the catalog was at fault.

DuckDB checks a block of a catalog only when it reads it, so that a damaged catalog shows in the midst of the SQL, and
may take the process along. Then the catalog is read through in another process and, unless sound, built again.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eventstore.run.output_path import check_output_file

from . import access, ask, guard, questions
from .limits import BrokenDownError, memory_bytes, run_limited

_AGAIN = 75
"""No exit code of ours: the child asks to be called once more, after a look at the catalog."""


class Inquiry(Struct, frozen=True, kw_only=True):
    """What is asked of which runs, and within which limits.

    `memory` is an amount as DuckDB writes it; `out` the file that the answer is written to, if it is; one that exists
    is replaced only with `overwrite`. `given` are the values that a person gave for the parameters of a canned
    `question`.
    """

    sql: str
    parameters: Mapping[str, Any]
    paths: Sequence[Path]
    catalog: access.CatalogChoice
    timeout_seconds: float
    memory: str
    out: Path | None = None
    overwrite: bool = False
    trusted: bool = False
    explain: bool = False
    question: questions.Question | None = None
    given: Mapping[str, str] = {}


class Delivery(Struct, frozen=True, kw_only=True):
    """What is done with an answer, a plan, problems of runs, and an error; each in the process that has it.

    The first three but `problems` return an exit code.
    """

    answer: Callable[[ask.Answer], int]
    plan: Callable[[str], int]
    problems: Callable[[list[str]], None]
    error: Callable[[BaseException], int]


def answer(inquiry: Inquiry, delivery: Delivery) -> int:
    """Answer once, or twice where the catalog may have been broken, and return the exit code.

    Raises UsageError where `out` must not be written, LimitError, BrokenDownError, and with `trusted` whatever the
    question raises.
    """
    if inquiry.out is not None:
        check_output_file(inquiry.out, overwrite=inquiry.overwrite)
    try:
        code = _answer_apart(inquiry, delivery, last=False)
    except BrokenDownError:
        if inquiry.catalog.off or _is_sound(inquiry):
            raise
        return _answer_apart(_rebuilding(inquiry), delivery, last=True)
    if code != _AGAIN:
        return code
    return _answer_apart(inquiry if _is_sound(inquiry) else _rebuilding(inquiry), delivery, last=True)


def _rebuilding(inquiry: Inquiry) -> Inquiry:
    return replace(inquiry, catalog=replace(inquiry.catalog, rebuild=True))


def _is_sound(inquiry: Inquiry) -> bool:
    """Return whether the catalog can be read, found out in a process of its own: DuckDB may not survive it."""

    def look(begin: Callable[[], None]) -> int:
        choice = access.CatalogChoice(file=inquiry.catalog.file)
        return int(not access.catalog_is_sound(inquiry.paths, choice))

    memory = memory_bytes(inquiry.memory)
    try:
        return run_limited(look, timeout_seconds=inquiry.timeout_seconds, memory=memory, on_error=lambda _: 1) == 0
    except BrokenDownError:
        return False


def _answer_apart(inquiry: Inquiry, delivery: Delivery, *, last: bool) -> int:
    """Return the exit code; _AGAIN where the catalog may be broken, and nothing has been said yet."""
    if inquiry.trusted:
        return _answer(inquiry, delivery, lambda: None, last=last)
    return run_limited(
        lambda begin: _answer(inquiry, delivery, begin, last=last),
        timeout_seconds=inquiry.timeout_seconds,
        memory=memory_bytes(inquiry.memory),
        on_error=delivery.error,
        after=lambda child: _remove_part(inquiry.out, child),
    )


def _remove_part(out: Path | None, child: int) -> None:
    """Remove what a killed process wrote of a file."""
    if out is not None:
        with suppress(OSError):
            ask.part_of(out, child).unlink()


def _answer(inquiry: Inquiry, delivery: Delivery, begin: Callable[[], None], *, last: bool) -> int:
    connection = _open(inquiry, delivery)
    try:
        if inquiry.question is not None:
            questions.check_values(connection, inquiry.question, inquiry.given)
        begin()
        if inquiry.explain:
            return delivery.plan(ask.explain(connection, inquiry.sql, inquiry.parameters))
        return delivery.answer(ask.ask(connection, inquiry.sql, inquiry.parameters, trusted=inquiry.trusted))
    except guard.BrokenCatalogError:
        if last or inquiry.catalog.off:
            raise
        return _AGAIN
    finally:
        access.close(connection)


def _open(inquiry: Inquiry, delivery: Delivery) -> Any:
    problems: list[str] = []
    try:
        return access.open_history(
            inquiry.paths,
            catalog=inquiry.catalog,
            on_problem=lambda path, words: problems.append(f"{path}: {words}"),
            memory_limit=None if inquiry.trusted else inquiry.memory,
            locked=not inquiry.trusted,
            timeout_seconds=None if inquiry.trusted else inquiry.timeout_seconds,
        )
    finally:
        delivery.problems(problems)
