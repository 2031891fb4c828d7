"""The persisted shape of a result, from the shape in which AgentCompass 1.0.1 keeps one while its task still runs.

Until a task is published, its terminal attempts lie in `result.json` as they were in memory: with the task's identity,
`extra`, `telemetry` and the whole plan in `meta`. Publication keeps nine members: identity belongs to `task.json`, the
plan to `run_info.json`, telemetry to `meta.harness.telemetry`, everything else to `meta.benchmark`. Nothing but those
small members is parsed.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from eventstore.errors import MalformedLineError
from eventstore.format.codec import dump_compact, parse_object
from eventstore.format.events import Json
from eventstore.redaction.redactor import redact

from .result import NAMESPACES, RESULT_MEMBERS

_EMPTY = Raw(b"{}")
_DROPPED_META = frozenset({*NAMESPACES, "resolved_execution_plan", "status", "error", "plan", "extra"})


def is_persisted_shape(members: Mapping[str, Raw]) -> bool:
    """Whether a result has the members that a published one has, `meta` with its two namespaces included."""
    return members.keys() == set(RESULT_MEMBERS) and set(_object(members["meta"])) == set(NAMESPACES)


def persisted_shape(members: Mapping[str, Raw]) -> dict[str, Raw]:
    """The nine members of a published result, in their order; values that are not moved keep their bytes."""
    shaped = {name: members[name] for name in RESULT_MEMBERS if name in members}
    for name in ("trajectory", "artifacts", "analysis_result"):
        if bytes(members.get(name, b"null")) in (b"null", b'""', b"[]"):
            shaped[name] = _EMPTY
    shaped.setdefault("metrics", _EMPTY)
    shaped.setdefault("issues", Raw(b"[]"))
    shaped.setdefault("final_answer", Raw(b"null"))
    shaped.setdefault("retry_count", Raw(b"0"))
    shaped["meta"] = Raw(dump_compact(redact(_meta(members))))
    return {name: shaped[name] for name in RESULT_MEMBERS if name in shaped}


def _meta(members: Mapping[str, Raw]) -> Json:
    stored = _object(members.get("meta"))
    benchmark: Json = {}
    harness: Json = {}
    _merge(benchmark, stored.get("benchmark"))
    _merge(harness, stored.get("harness"))
    _merge(benchmark, stored.get("extra"))
    _merge(benchmark, {name: value for name, value in stored.items() if name not in _DROPPED_META})
    _merge(benchmark, _object(members.get("extra")))
    telemetry = _object(members.get("telemetry"))
    if telemetry:
        _merge(harness, {"telemetry": telemetry})
    return {"benchmark": _sparse(benchmark), "harness": _sparse(harness)}


def _object(raw: Raw | None) -> Json:
    try:
        return {} if raw is None else parse_object(bytes(raw))
    except MalformedLineError:
        return {}


def _merge(target: Json, value: Any) -> None:
    for name, item in value.items() if isinstance(value, dict) else ():
        mine = target.get(name)
        if isinstance(mine, dict) and isinstance(item, dict):
            _merge(mine, item)
        else:
            target[name] = item


def _sparse(value: Json) -> Json:
    """Without empty members, at any depth of objects."""
    kept: Json = {}
    for name, item in value.items():
        found = _sparse(item) if isinstance(item, dict) else item
        if found not in (None, "", {}, []):
            kept[name] = found
    return kept
