"""The one mask for what leaves: every text from a record passes here on its way to a person or to a file.

`mask_text` is for a text, `mask_document` for what is printed or written as JSON, `mask_row` for a row of SQL. They
mask what the recorder masks when it writes, so a record of another program is shown as one of ours would be.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from eventstore.redaction.names import is_container_key, is_secret_name, is_sensitive_key, key_text
from eventstore.redaction.redactor import Redactor, secret_environment_values

OUR_NAMES = frozenset({"run_key", "request_key", "secret", "secrets"})
"""Members of reports, columns and envelopes that sound like a secret and hold an identity, a count or a list of
places: their names say nothing of what they hold, and their texts are looked at like any other."""
NAMED_BY_IDS = frozenset({"active_tasks", "error_tasks", "warning_tasks", "tasks", "phases", "counts", "parameters"})
"""Objects whose member names are ids or words of a count: `count_token` is a task there, and no token."""
MAX_SHOWN_DEPTH = 200
"""Levels of nesting that are shown; no program writes half as many, and each level costs stack to mask and to print."""
TOO_DEEP = f"not shown: it lies more than {MAX_SHOWN_DEPTH} levels deep"
"""What stands in place of an object or a list that lies deeper."""
_CONTAINERS = (Mapping, list, tuple, set, frozenset, Struct)


@cache
def _redactor() -> Redactor:
    return Redactor(secret_environment_values(os.environ))


def mask_text(text: str) -> str:
    """Return `text` with credentials, and values of secret environment variables, masked; itself if it has none."""
    return _redactor().text(text)


def mask_document(value: Any) -> Any:
    """Return a document with credentials masked by their form, their place and the names of their members.

    Structs come back as objects: their member names are ours, and only what they hold is looked at. In place of an
    object or a list below `MAX_SHOWN_DEPTH` stands `TOO_DEEP`.
    """
    return _mask_value(bounded(value))


def bounded(value: Any) -> Any:
    """Return the value itself, or a copy with `TOO_DEEP` in place of all containers below `MAX_SHOWN_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_SHOWN_DEPTH):
        level = [part for container in level for part in _parts(container)]
        if not level:
            return value
    return _cut(value, MAX_SHOWN_DEPTH)


def _parts(container: Any) -> list[Any]:
    """Return the containers right inside a container; none for anything else."""
    members: Iterable[Any]
    if isinstance(container, Mapping):
        members = container.values()
    elif isinstance(container, Struct):
        members = [getattr(container, name) for name in container.__struct_fields__]
    elif isinstance(container, list | tuple | set | frozenset):
        members = container
    else:
        return []
    return [member for member in members if isinstance(member, _CONTAINERS)]


def _cut(value: Any, levels: int) -> Any:
    if not isinstance(value, _CONTAINERS):
        return value
    if not levels:
        return TOO_DEEP
    if isinstance(value, Struct):
        return {name: _cut(getattr(value, name), levels - 1) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {name: _cut(member, levels - 1) for name, member in value.items()}
    return [_cut(member, levels - 1) for member in value]


def _mask_value(value: Any) -> Any:
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Struct):
        return {name: _mask_member(name, getattr(value, name), {}) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return _mask_members(value)
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):  # a command line: an option tells of its value
            return list(_redactor().redact(list(value)))
        return [_mask_value(item) for item in value]
    return value


def _mask_members(members: Mapping[Any, Any]) -> dict[Any, Any]:
    masked: dict[Any, Any] = {}
    for name, member in members.items():
        shown = mask_text(name) if isinstance(name, str) else name
        while shown in masked:  # two names that are the same behind their masks
            shown = f"{shown}'"
        masked[shown] = _mask_member(name, member, members)
    return masked


def _mask_member(name: Any, member: Any, owner: Mapping[Any, Any]) -> Any:
    """A member of an object, of which its name may tell, or the name beside it (`{"name": "API_KEY", "value": …}`)."""
    text = key_text(name)
    if text in OUR_NAMES:
        return _mask_value(member)
    if text in NAMED_BY_IDS and isinstance(member, Mapping):
        return {_mask_value(inner): _mask_value(value) for inner, value in member.items()}
    if is_container_key(text) or is_sensitive_key(text) or is_secret_name(text):
        return _redactor().redact({name: member})[name]
    if text == "value" and isinstance(member, str):
        return _redactor().redact({"name": owner.get("name", owner.get("key")), "value": member})["value"]
    return _mask_value(member)


def mask_row(names: Sequence[str], kinds: Sequence[str], row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row of an answer, masked; a JSON column's text stays JSON."""
    cells = dict(zip(names, row, strict=False))
    return tuple(_mask_cell(name, kind, cell, cells) for name, kind, cell in zip(names, kinds, row, strict=True))


def _mask_cell(name: str, kind: str, cell: Any, owner: Mapping[str, Any]) -> Any:
    if kind != "JSON" or not isinstance(cell, str):
        return _mask_member(name, bounded(cell), owner)
    try:
        whole = json.loads(cell)
        document = bounded(whole)
        masked = _mask_member(name, document, owner)
    except (ValueError, RecursionError):
        return mask_text(cell)
    return cell if document is whole and masked == document else json.dumps(masked)
