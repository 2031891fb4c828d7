"""Canned questions: `.sql` files with the question in plain words and their parameters in comments.

    -- Which phases took longest?
    -- :limit 20      how many to show
    -- :environment   only runs in this environment; all if not given
    SELECT …

A parameter is `:name default words`; one without a default is NULL unless given. They run by hand as well.
"""

import re
from importlib import resources

from msgspec import Struct

from eventstore.errors import UsageError

_PARAMETER = re.compile(r":(\w+)(?: (\S+))?(?:\s{2,}(.*))?$")


class Parameter(Struct, frozen=True):
    """A parameter with its default (None: NULL) and what it means."""

    name: str
    default: str | None
    description: str


class Question(Struct, frozen=True):
    """A canned question: its name, the question in plain words, its parameters and its SQL."""

    name: str
    description: str
    parameters: list[Parameter]
    sql: str


def names() -> list[str]:
    """The names of all canned questions."""
    folder = resources.files(__package__).joinpath("questions")
    return sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql"))


def question(name: str) -> Question:
    """A canned question by its name. Raises UsageError with the nearest names."""
    known = names()
    if name not in known:
        from difflib import get_close_matches

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
    return Question(name, words, [Parameter(m[1], m[2], m[3] or "") for m in found], sql)


def parameters(asked: Question, given: dict[str, str]) -> dict[str, str | None]:
    """Given values with the defaults of the rest. Raises UsageError for one that the question doesn't have."""
    known = {parameter.name: parameter.default for parameter in asked.parameters}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        has = ", ".join(known) or "none"
        raise UsageError(f"{asked.name} has no parameter {unknown[0]!r}; it has {has}")
    return {**known, **given}
