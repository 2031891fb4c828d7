"""Rows of `params`: the request of run_info.json, leaf by leaf, with what only params.json has filled in."""

from collections.abc import Iterator
from typing import Any

from eventstore.format.events import Json

from .tables import ParamRow
from .values import json_text, text

_MAX_LEAVES = 10_000


def param_rows(run_info: Json, params: Json | None) -> Iterator[ParamRow]:
    """Yield leaves of the request by path (`execution.attempts.k`); an empty object or a list is a leaf."""
    seen: set[str] = set()
    request = run_info.get("request")
    for source, value in (("run_info", request if isinstance(request, dict) else {}), ("params", params or {})):
        for name, leaf in _leaves(value, ""):
            if name not in seen and len(seen) < _MAX_LEAVES:
                seen.add(name)
                yield ParamRow(name=name, source=source, value=_plain(leaf), raw=json_text(leaf))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not path):
        for name, member in value.items():
            key = text(name) or ""
            yield from _leaves(member, f"{path}.{key}" if path else key)
    else:
        yield path, value


def _plain(value: Any) -> str | None:
    return text(value) if isinstance(value, str) else json_text(value)
