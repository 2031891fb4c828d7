"""Secrets that only the shape of a document gives away: what `redact` masks in it and no text shows.

A list of secrets under a telling name, the value after an option of a command line, a header and its value, a name with
its value beside it. Pure. Objects under a telling name are looked into and not reported as a whole: `password` is also
the name of a field that somebody describes.
"""

from collections.abc import Iterator
from typing import Any

from .names import is_secret_name
from .redactor import redact


def announced_secrets(value: Any) -> Iterator[str]:
    """Yield a kind for each secret that stands in `value` because of a name or an item before it."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            yield from _in_members(current)
            pending += [member for member in current.values() if isinstance(member, dict | list)]
        elif isinstance(current, list):
            if _is_texts(current) and redact(current) != current:
                yield "announced_secret"
            pending += [item for item in current if isinstance(item, dict | list)]


def _in_members(members: dict[str, Any]) -> Iterator[str]:
    named = members.get("name", members.get("key"))
    for name, member in members.items():
        telling = named if name == "value" and isinstance(named, str) else name
        if not (isinstance(member, str) or (isinstance(member, list) and member and _is_texts(member))):
            continue
        if is_secret_name(telling) and redact({telling: member}) != {telling: member}:
            yield "named_secret"


def _is_texts(items: list[Any]) -> bool:
    return all(isinstance(item, str) for item in items)
