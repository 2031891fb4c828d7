"""The page `summary.md` that AgentCompass 1.0.1 writes of a metrics.json, for comparing the two. Pure.

    summary_lines(metrics, "toy-7b", "toy_arith") == normal_lines(stored_page)

Lines are compared with runs of spaces and of dashes as one, so that the widths of a table's columns don't matter.
"""

import re
from html import escape
from typing import Any

from eventstore.format.events import Json

_SPACES = re.compile(r"[ \t]+")
_RULE = re.compile(r"-{3,}")


def summary_lines(metrics: Json, model: str | None, benchmark: str | None) -> list[str] | None:
    """Return the page's lines in their normal form; None where metrics.json lacks what the page shows.

    Without `model` or `benchmark` its line is `…`, which `differing_line` lets stand for any line.
    """
    try:
        return normal_lines("\n".join(_page(metrics, model, benchmark)))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        return None


def normal_lines(page: str) -> list[str]:
    """Return the lines of a page that hold something, with runs of spaces and dashes as one."""
    lines = (_RULE.sub("---", _SPACES.sub(" ", line)).strip() for line in page.splitlines())
    return [line for line in lines if line]


def differing_line(expected: list[str], stored: list[str]) -> tuple[str | None, str | None] | None:
    """Return the first line that differs, as (expected, stored), None for a missing one; None where none does."""
    for position in range(max(len(expected), len(stored))):
        ours = expected[position] if position < len(expected) else None
        theirs = stored[position] if position < len(stored) else None
        if ours not in (theirs, "…"):
            return ours, theirs
    return None


def _page(metrics: Json, model: str | None, benchmark: str | None) -> list[str]:
    series = metrics["series"]
    headlines = [row for row in series if row["role"] == "headline"]
    primary = next((row for row in headlines if row["reducer"] == metrics["strategy"]), headlines[0])
    counts = primary["counts"]
    lines = [
        "…" if benchmark is None else f"# {_text(benchmark.upper())} Evaluation Results",
        "…" if model is None else f"**Model:** {_code(model)}",
        f"**Total:** {counts['total']}",
        f"**Evaluated:** {counts['evaluated']}/{counts['total']}",
        f"**Invalidated:** {counts['invalidated']}",
        f"**Error:** {counts['error']}",
    ]
    lines += _single(series, primary) if metrics["k"] == 1 else _repeated(metrics, series)
    if metrics["evaluation_failed"]:
        lines.append(
            "**Evaluation failed:** no official score. "
            "Values labelled reference exclude all tasks with final FATAL issues."
        )
    return lines


def _single(series: list[Json], primary: Json) -> list[str]:
    lines = [
        "## Metrics",
        *_table(["Metric", "Value"], [[_text(row["metric_id"]), _shown(row, row)] for row in series]),
    ]
    for name, member in (("category", "categories"), ("hierarchy", "hierarchy")):
        keys = sorted(primary[member])
        if not keys:
            continue
        rows = []
        for key in keys:
            counts = primary[member][key]["counts"]
            shown = [_shown(row[member].get(key), row) for row in series]
            rows.append([_text(key), *shown, *(str(counts[count]) for count in ("total", "evaluated", "error"))])
        headers = [name, *(row["metric_id"] for row in series), "total", "evaluated", "error"]
        lines += [f"## Details: {name}", *_table(headers, rows)]
    return lines


def _repeated(metrics: Json, series: list[Json]) -> list[str]:
    plan = f"`k={metrics['k']}`, strategy `{metrics['strategy']}`, aggregation `{metrics['aggregation']}`"
    headers = ["Metric", "Role", "Reducer", "Formula", "Value", "Evaluated", "Error", "Unavailable", "Total"]
    rows = []
    for row in series:
        label = (row.get("display") or {}).get("label") or row["metric_id"]
        counts = [str(row["counts"][name]) for name in ("evaluated", "error", "unavailable", "total")]
        name = _text(f"{label} ({row['reducer']}@{row['k']})")
        rows.append([name, row["role"], row["reducer"], row["aggregation"], _shown(row, row), *counts])
    return [
        f"**Attempt plan:** {plan}",
        "## Metrics",
        *_table(headers, rows),
        "Full metric data: [metrics.json](metrics.json)",
    ]


def _table(headers: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(cell.strip() for cell in row)} |" for row in [headers, *rows]]
    lines.insert(1, f"|{'|'.join('---' for _ in headers)}|")
    return lines


def _shown(part: Json | None, series: Json) -> str:
    if part is None:
        return "-"
    if part.get("reference_value") is not None:
        return _text(_number(part["reference_value"], series) + " (reference)")
    return _text(_number(part["value"], series))


def _number(value: Any, series: Json) -> str:
    if value is None:
        return "-"
    display = series.get("display") or {}
    precision = display.get("precision")
    text = f"{value:.{4 if precision is None else precision}f}"
    return f"{text} {display['unit']}" if display.get("unit") else text


def _text(value: Any) -> str:
    text = escape(str(value).replace("\r", " ").replace("\n", " "), quote=False)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("`", "\\`")


def _code(value: str) -> str:
    text = value.replace("\r", " ").replace("\n", " ")
    delimiter = "`"
    while delimiter in text:
        delimiter += "`"
    return f"{delimiter}{text}{delimiter}"
