"""Rows of a query as text: table, json, jsonl, csv, markdown. Data only; words go to stderr elsewhere."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, TextIO, TypeAlias

from . import markdown
from .output import print_table, visible

Writer: TypeAlias = Callable[[TextIO, Sequence[str], Sequence[str], Iterable[Sequence[Any]]], None]
_NUMERIC = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|DECIMAL\(.*\)")


def is_numeric(kind: str) -> bool:
    """Return whether a column of this DuckDB type holds numbers."""
    return _NUMERIC.fullmatch(kind) is not None


def plain_value(value: Any, kind: str = "") -> Any:
    """A value as JSON holds it: moments in ISO 8601 (UTC), NaN and infinities null, JSON columns as what they hold."""
    if kind == "JSON" and isinstance(value, str):
        return _parsed(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain_value(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(member) for member in value]
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, date | time) else _text(value)


def _parsed(text: str) -> Any:
    """Return what a JSON column holds; the text itself where a JSON document could not say the same (NaN in it)."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return text


def _text(value: Any) -> str:
    """Return a value as a cell of a table or of a CSV file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, dict | list | tuple):
        return json.dumps(plain_value(value), ensure_ascii=False)
    return str(value)


def write_json(out: TextIO, names: Sequence[str], kinds: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """One JSON array of row objects, pure ASCII."""
    separator = "["
    for line in _objects(names, kinds, rows):
        out.write(f"{separator}\n  {line}")
        separator = ","
    out.write("[]\n" if separator == "[" else "\n]\n")


def write_jsonl(out: TextIO, names: Sequence[str], kinds: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """One JSON object a line, pure ASCII."""
    for line in _objects(names, kinds, rows):
        out.write(line + "\n")


def _objects(names: Sequence[str], kinds: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    keys = unique_names(names)
    for row in rows:
        yield json.dumps(dict(zip(keys, map(plain_value, row, kinds), strict=True)))


def unique_names(names: Sequence[str]) -> list[str]:
    """Return column names, a repeated one numbered, so that no value is lost in an object."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}:{seen[name] - 1}")
    return unique


def write_csv(out: TextIO, names: Sequence[str], kinds: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Comma-separated with a header (RFC 4180); NULL and an empty text are both an empty field.

    A text that a spreadsheet would take for a formula has an apostrophe before it, so that it is shown as a text.
    """
    _write_csv(out, names, rows, _shown_by_a_spreadsheet)


def write_raw_csv(out: TextIO, names: Sequence[str], kinds: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """The same with every text as it is, for programs that read CSV and know no formulas."""
    _write_csv(out, names, rows, str)


def _write_csv(out: TextIO, names: Sequence[str], rows: Iterable[Sequence[Any]], as_text: Callable[[str], str]) -> None:
    out.write(",".join(_field(as_text(name)) for name in names) + "\n")
    for row in rows:
        cells = ("" if value is None else _safe(_csv_cell(value, as_text), out) for value in row)
        line = ",".join(map(_field, cells))
        out.write((line or '""' if len(row) == 1 else line) + "\n")  # a line of nothing would be no row


def _field(text: str) -> str:
    """Return a field, in quotes where it holds what ends one; the library's writer forgets a carriage return."""
    return '"' + text.replace('"', '""') + '"' if _ENDS_A_FIELD.search(text) else text


_ENDS_A_FIELD = re.compile('[",\r\n]')


def _csv_cell(value: Any, as_text: Callable[[str], str]) -> str:
    return as_text(value) if isinstance(value, str) else _text(value)


_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def _shown_by_a_spreadsheet(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _safe(text: str, out: TextIO) -> str:
    return visible(text) if out.isatty() else text


def write_markdown(out: TextIO, names: Sequence[str], kinds: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A GitHub table."""
    marks = ["---:" if is_numeric(kind) else "---" for kind in kinds]
    for cells in (map(markdown.cell, names), marks):
        out.write(f"| {' | '.join(cells)} |\n")
    for row in rows:
        out.write(f"| {' | '.join('' if value is None else markdown.cell(_text(value)) for value in row)} |\n")


def write_table(
    names: Sequence[str], kinds: Sequence[str], rows: Iterable[Sequence[Any]], limit: int | None
) -> tuple[int, bool]:
    """Print a table of at most `limit` rows, and return how many there were and whether more were left out."""
    rows = iter(rows)
    shown = [[None if v is None else _text(v) for v in row] for row in islice(rows, limit)]
    more = next(rows, None) is not None  # before anything is printed: an error that comes late leaves no half an answer
    print_table(
        names, shown, right=[name for name, kind in zip(names, kinds, strict=True) if is_numeric(kind)], as_it_is=True
    )
    return len(shown), more


WRITERS: dict[str, Writer] = {
    "json": write_json,
    "jsonl": write_jsonl,
    "csv": write_csv,
    "raw csv": write_raw_csv,
    "markdown": write_markdown,
}
