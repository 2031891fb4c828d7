"""What every command shares: clean text, JSON on stdout, words on stderr, tables, and errors to exit codes."""

import errno
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click
import msgspec

from eventstore import errors

PIPE_WIDTH = 10_000
OK, FOUND, USAGE, UNUSABLE, INTERRUPTED = 0, 1, 2, 3, 130
EXIT_CODES: dict[type[errors.CompassError], int] = {
    errors.UsageError: USAGE,
    errors.QueryError: USAGE,
    errors.InputError: UNUSABLE,
    errors.OutputError: UNUSABLE,
    errors.CompassError: FOUND,
}
"""The one place that maps a class of error to an exit code; the nearest class in the error's ancestry counts."""

_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: object, limit: int | None = None) -> str:
    """Text from a record, fit to be shown: credentials masked; control, escape and direction characters visible."""
    return visible(masked(str(text)), limit)


def masked(text: str) -> str:
    """Text with its credentials masked; loaded when there is a text, so that `--help` needs no rule about secrets."""
    from eventstore.operations.masking import mask_text

    return mask_text(text)


def visible(text: object, limit: int | None = None) -> str:
    """Text that can't steer a terminal, secrets and all: for what was masked before, or is asked for as it is."""
    whole = str(text)
    cut = whole if limit is None or len(whole) <= limit else whole[: limit - 1] + "…"
    if cut.isprintable() and cut.isascii():
        return cut
    return "".join(character if _is_harmless(character) else _escape(character) for character in cut)


def _is_harmless(character: str) -> bool:
    return character == " " or (character.isprintable() and character not in _BIDIRECTIONAL)


def _escape(character: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    code = ord(character)
    return named or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}")


def utf8_text(argument: str, what: str) -> str:
    """Return a word of the command line as text. Raises UsageError where its bytes are not UTF-8.

    Where the locale knows only ASCII, Python hands other bytes over as lone surrogates.
    """
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeEncodeError:
        return argument  # not from a command line; it is text already
    except UnicodeDecodeError as error:
        raise errors.UsageError(f"{what}: is not UTF-8 from byte {error.start} on") from None


def say(text: str) -> None:
    """Words for people, on stderr."""
    click.echo(masked(text), err=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout, masked: pure ASCII, so that nothing in it can steer a terminal; NaN and infinities
    null."""
    click.echo(clean_json(value))


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it, masked: structs as objects, numbers that JSON has no form for as null."""
    from eventstore.operations.masking import mask_document

    return _plain(mask_document(value))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(member) for member in value]
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, str | int | bool | None):
        return value
    return masked(str(value))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), as_it_is: bool = False
) -> None:
    """A table on stdout: as wide as the terminal, or unbounded and plain when piped. `as_it_is`: nothing is masked."""
    console().print(build_table(columns, rows, right=right, as_it_is=as_it_is))


def build_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), as_it_is: bool = False
) -> Any:
    """Return a table to print, or to put on a live page; its cells are cleaned."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value, visible if as_it_is else clean) for value in row))
    return table


def paragraph(text: str, first: str = "", rest: str = "") -> None:
    """Clean text on stdout, broken at words where a terminal ends; the first line begins with `first`, others with
    `rest`. Through a pipe it stays one line."""
    page = console()
    if page.width >= PIPE_WIDTH or len(first) + len(text) <= page.width // 2:
        click.echo(first + text)
        return
    from rich.text import Text

    lines = Text(text).wrap(page, max(20, page.width - max(len(first), len(rest))))
    for number, line in enumerate(lines):
        click.echo(f"{rest if number else first}{line.plain.rstrip()}")


def stack(parts: Iterable[Any]) -> Any:
    """Lines (cleaned by whoever made them) and tables, one below the other, as one thing to print or to show live."""
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text(part, overflow="fold") if isinstance(part, str) else part for part in parts))


def live_page() -> Any:
    """Return a page on the terminal that is drawn anew by `update(what, refresh=True)`; cut where the terminal ends."""
    from rich.live import Live

    return Live(console=console(), auto_refresh=False, vertical_overflow="crop", transient=False)


def _cell(value: Any, write: Callable[[object], str]) -> Any:
    from rich.text import Text

    return Text("" if value is None else write(value))


def console() -> Any:
    """The terminal, or a pipe as a very wide page without colour. NO_COLOR is respected by the library itself."""
    from rich.console import Console

    class Page(Console):
        def on_broken_pipe(self) -> None:
            quit_quietly()

    return Page(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, emoji=False, markup=False)


def duration(seconds: float | None) -> str:
    """Return a length of time for people, `1h 02m` or `4.2s`."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    if abs(seconds) < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(abs(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s"
    return f"-{text}" if seconds < 0 else text


def fail(error: errors.CompassError, as_json: bool) -> NoReturn:
    """Tell an error, as JSON on stdout where that was asked for, and leave with its exit code."""
    if as_json:
        from eventstore.operations.reports.error import error_report

        print_json(error_report(error))
    else:
        say(f"compass-es: {clean(error.message)}")
    code = next(EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES)
    raise SystemExit(code)


def exit_code_of(error: BaseException, as_json: bool) -> int:
    """Report an error in a process that nobody can raise it out of, and return the exit code."""
    try:
        if isinstance(error, errors.CompassError):
            fail(error, as_json)
        if isinstance(error, BrokenPipeError):
            quit_quietly()
        if isinstance(error, OSError):
            fail_on_system_error(error)
        if isinstance(error, KeyboardInterrupt):
            say("interrupted")
            return INTERRUPTED
        traceback.print_exception(error)
    except SystemExit as left:
        with suppress(OSError):
            sys.stdout.flush()
        return int(left.code or OK)
    return FOUND


def open_standard_streams() -> None:
    """Open those of the three standard streams that the caller closed, so that no other file gets their number.

    Writing to a closed stdout fails then as it does on a full disk, and a command that writes nothing runs.
    """
    flags = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)
    for number, flag in enumerate(flags):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flag)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process lives
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            # A buffer takes what it is given; only its flush finds out that nobody is there.
            stream = open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def fail_on_system_error(error: OSError) -> NoReturn:
    """The system refused something that no part of the program expected it to refuse; most often, to take output."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        where = "the system refuses: "
    else:
        where = f"{clean(error.filename)}: " if error.filename else "the output can't be written: "
    say(f"compass-es: {where}{error.strerror}")
    _silence_stdout()
    raise SystemExit(UNUSABLE)


def quit_quietly() -> NoReturn:
    """The reader of a pipe has gone: say nothing, and let nothing be said at interpreter exit either."""
    _silence_stdout()
    raise SystemExit(141)


def _silence_stdout() -> None:
    """What is still buffered goes nowhere, or the interpreter would complain of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def clean_json(value: Any) -> str:
    """Return a JSON document for a terminal, masked."""
    return json.dumps(plain(value), indent=2)
