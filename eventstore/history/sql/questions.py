"""Canned questions: `.sql` files with the question in plain words and their parameters in comments.

    -- Which phases took longest?
    -- :limit 20      how many to show
    -- :environment   only runs in this environment; all if not given
    SELECT …

A parameter is `:name default words`; one without a default is NULL unless given. They run by hand as well.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from typing import Any

from msgspec import Struct

from eventstore.errors import UsageError

_PARAMETER = re.compile(r":(\w+)(?: (\S+))?(?:\s{2,}(.*))?$")


class Parameter(Struct, frozen=True):
    """A parameter with its default (None: NULL) and what it means; a required one has no answer without a value."""

    name: str
    default: str | None
    description: str
    required: bool = False


class Question(Struct, frozen=True):
    """A canned question: its name, the question in plain words, its parameters and its SQL."""

    name: str
    description: str
    parameters: list[Parameter]
    sql: str


def names() -> list[str]:
    """Return the names of all canned questions."""
    folder = resources.files(__package__).joinpath("questions")
    return sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql"))


def question(name: str) -> Question:
    """Return a canned question by its name. Raises UsageError with the nearest names."""
    known = names()
    if name not in known:
        close = get_close_matches(name, known, 3, 0.4)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UsageError(f"there is no canned question {name!r}{hint} (query --list names them)")
    sql = resources.files(__package__).joinpath("questions", f"{name}.sql").read_text("utf-8")
    comment = []
    for line in sql.splitlines():
        if not line.startswith("--"):
            break
        comment.append(line[2:].strip())
    found = [match for line in comment if (match := _PARAMETER.match(line))]
    words = " ".join(line for line in comment if not line.startswith(":"))
    return Question(name, words, [_parameter(match, sql) for match in found], sql)


def _parameter(match: re.Match[str], sql: str) -> Parameter:
    """Read a parameter's line; one without a default that the SQL doesn't compare with NULL is required."""
    name, default = match[1], match[2]
    return Parameter(name, default, match[3] or "", default is None and f"${name} IS NULL" not in sql)


def parameters(asked: Question, given: dict[str, str]) -> dict[str, str | None]:
    """Return given values with the defaults of the rest.

    Raises UsageError for one that the question doesn't have, and for a required one that is missing.
    """
    known = {parameter.name: parameter.default for parameter in asked.parameters}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        has = ", ".join(known) or "none"
        raise UsageError(f"{asked.name} has no parameter {unknown[0]!r}; it has {has}")
    missing = [one for one in asked.parameters if one.required and not given.get(one.name)]
    if missing:
        asks = "; ".join(f"--param {one.name}=… ({one.description})" for one in missing)
        raise UsageError(f"{asked.name} can't be answered without {asks}")
    return {**known, **given}


_VALUES = {
    "run_key": "SELECT run_key FROM runs",
    "task_id": "SELECT task_id FROM tasks UNION SELECT task_id FROM results",
    "benchmark": "SELECT DISTINCT benchmark FROM runs",
    "environment": "SELECT DISTINCT environment FROM runs",
    "phase": "SELECT DISTINCT phase FROM phases",
    "metric": "SELECT DISTINCT metric FROM metrics",
}
"""Kind of a parameter → the query for the values that a history has of it."""


def check_values(connection: Any, asked: Question, given: Mapping[str, str]) -> None:
    """Raise UsageError, with the nearest names, for a given run, task, … that the history doesn't have.

    `connection` is one to an open history.
    """
    for parameter in asked.parameters:
        kind = _kind(parameter)
        value = given.get(parameter.name)
        if kind is None or value is None:
            continue
        known = [str(name) for (name,) in connection.execute(_VALUES[kind]).fetchall() if name is not None]
        if value not in known:
            close = get_close_matches(value, known, 3, 0.4)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise UsageError(f"--param {parameter.name}: no {kind} is {value!r}{hint}")


def _kind(parameter: Parameter) -> str | None:
    named = [kind for kind in ("run_key", "task_id") if kind in parameter.description]
    return named[0] if named else parameter.name if parameter.name in _VALUES else None
