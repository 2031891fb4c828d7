"""Text of records in Markdown: in a cell of a table, or as a code span, it stays text.

Whoever reads the report may look at it where Markdown is rendered, so a cell neither ends early nor becomes a link, an
image, a mention or HTML. What could is written as a character reference, which no rule of Markdown looks into.
"""

import re

from .output import visible

_ACTIVE = re.compile(r"[\\|<>&`*~\[\]!@#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=[A-Za-z]):(?=/)|(?<=[Ww]{3})\.")
"""Characters that begin markup; the colon of an address and the dot after `www` make links of bare text."""


def cell(text: str) -> str:
    """Return `text`, masked before where it should be, as a cell of a table: one line, and nothing but text."""
    return _ACTIVE.sub(lambda found: f"&#{ord(found[0])};", visible(text))


def code(text: str) -> str:
    """Return `text` as a code span that holds any text: fenced by more backticks than it has in a row; "" for none.

    Not for a cell of a table: there a `|` ends the cell even inside a code span.
    """
    words = visible(text)
    longest = max((len(run) for run in re.findall("`+", words)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{words}{pad}{fence}" if words.strip() else ""
