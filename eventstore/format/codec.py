"""Lines to events and back: one strict fast path (msgspec), one tolerant slow path for the line that needs it.

The tolerant path is the standard library's parser, because it reads what JSON writers in the wild produce: NaN and
Infinity, integers of any size, lone surrogates, repeated keys (the last wins). What it reads it writes again, so that
`encode(decode(line))` gives the line back for every compact line that we wrote.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from eventstore.errors import MalformedLineError

from .events import ENVELOPE, KNOWN_EVENTS, Event, Fact, Json, KnownEvent, Payload, UnknownEvent
from .records import Head

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NOT_IN_UTF8 = re.compile("[\ud800-\udfff]")
_SCALARS = (str, int, float, bool, type(None))


def plain_form(value: Any) -> Any:
    """Return what is written of an object that msgspec has no form for: a JSON encoder's, or AgentCompass's, answer.

    A string or number of a class of its own is its characters or its value, a path its text, a pydantic model or any
    other mapping an object of its members. Raises TypeError for everything else.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    if hasattr(value, "__fspath__"):
        return str(value)
    model_dump = getattr(type(value), "model_dump", None)
    if callable(model_dump):
        return model_dump(value, mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


_decoder: msgspec.json.Decoder[KnownEvent] = msgspec.json.Decoder(KnownEvent)
_any_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder(enc_hook=plain_form)
_TAGS = {kind: f',"event":"{name}"'.encode() for name, kind in KNOWN_EVENTS.items()}
REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a line; a RecursionError is one nested too deeply for it."""


def decode(line: bytes | memoryview) -> Event:
    """Return the event in one line (with or without its newline).

    Raises MalformedLineError, with the byte where reading stopped, if the line is no event.
    """
    try:
        return _decoder.decode(line)
    except REFUSALS:
        return decode_tolerantly(bytes(line))


def decode_accepted(line: bytes, head: Head) -> Event:
    """Return the event in a line that `scan` accepted; never raises.

    A payload that is sound JSON but can't be held (nested thousands deep) is read as empty: the head still counts.
    """
    try:
        return decode(line)
    except MalformedLineError:
        fields: Json = {"run_id": head.run_id, "timestamp": head.timestamp, "task_id": head.task_id}
        return build_event({"event": head.event, **fields})


def decode_tolerantly(line: bytes) -> Event:
    """As `decode`, by the slow path: odd values stay as they are, unknown members and types are kept."""
    return build_event(parse_object(line))


def as_array(lines: list[bytes]) -> bytes:
    """Return lines as one JSON array, so that two records glued on one line, or a blank one, don't parse.

    For a list that nobody else changes meanwhile: its ends are others while this runs.
    """
    first, last = lines[0], lines[-1]
    lines[0] = b"[" + first
    lines[-1] += b"]"
    array = b",".join(lines)  # in one go: what is as large as a block takes a while to copy
    lines[-1] = last
    lines[0] = first
    return array


def parse_object(line: bytes) -> Json:
    """Return the JSON object in a line, any odd value accepted. Raises MalformedLineError with the position."""
    content = line.removeprefix(BYTE_ORDER_MARK)
    try:
        value = _any_decoder.decode(content)  # what it accepts, Python's json reads as the same, in thrice the time
    except (*REFUSALS, ValueError):
        value = _parse_tolerantly(content)
    if not isinstance(value, dict):
        raise MalformedLineError(f"a JSON {_json_type(value)} where an object must stand")
    return value


def _parse_tolerantly(content: bytes) -> Any:
    text = decode_text(content)
    try:
        return _parse(text)
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise MalformedLineError(f"not JSON: {error.msg} at byte {at} of the line", at) from None
    except RecursionError:
        raise MalformedLineError("not readable: nested too deeply") from None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer with more digits than Python converts: read as a float, the line still has it
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 4300 else float(digits))


def decode_text(line: bytes) -> str:
    """Return the text of a line. Raises MalformedLineError where it is no UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedLineError(f"invalid UTF-8 at byte {error.start} of the line", error.start) from None


def check_shape(members: Json) -> None:
    """Raises MalformedLineError unless `members` have the shape of an event (the same test that `Head` makes)."""
    for name, kinds, words in (
        ("run_id", str, "a string"),
        ("event", str, "a string"),
        ("timestamp", (int, float), "a number"),
    ):
        if name not in members:
            raise MalformedLineError(f"a JSON object without {name}")
        if not isinstance(members[name], kinds) or isinstance(members[name], bool):
            raise MalformedLineError(f"{name} is not {words}")
    if not isinstance(members.get("payload", {}), dict | None):
        raise MalformedLineError("payload is not an object")
    if not isinstance(members.get("task_id"), _SCALARS):
        raise MalformedLineError("task_id is not a single value")


def build_event(members: Json) -> Event:
    """Return the event that a parsed line holds. Raises MalformedLineError if the shape is wrong."""
    check_shape(members)
    fields = {name: members[name] for name in ENVELOPE if name in members and name != "event"}
    fields["task_id"] = task_id_text(members)
    if any(name not in ENVELOPE and name != "log" for name in members):
        fields["extra"] = members
    if isinstance(members.get("log"), dict):
        fields["log"] = Raw(dump_compact(members["log"]))
    kind = KNOWN_EVENTS.get(members["event"])
    payload = fields.get("payload") or {}
    if kind is None:
        return UnknownEvent(event=members["event"], **(fields | {"payload": payload}))
    fields["payload"] = _build_payload(kind, payload)
    event: Event = kind(**fields)  # type: ignore[assignment]
    return event


def task_id_text(members: Json) -> str | None:
    """The task id of a parsed line; a number or a boolean as the text that AgentCompass's snapshot shows for it."""
    task_id = members.get("task_id")
    return task_id if task_id is None or isinstance(task_id, str) else json.dumps(task_id)


def _build_payload(kind: type[Fact], members: Json) -> Any:
    declared = type(_default_payload(kind))
    if not issubclass(declared, Payload):
        return members
    try:
        return msgspec.convert(members, declared)
    except (msgspec.ValidationError, RecursionError, UnicodeEncodeError):  # the last for a lone surrogate in a name
        known = {name: members[name] for name in declared.__struct_fields__ if name in members and name != "extra"}
        return declared(extra=members, **known)


def _default_payload(kind: type[Fact]) -> Any:
    return kind.__struct_defaults__[-kind.__struct_fields__[::-1].index("payload") - 1]


def payload_members(event: Event) -> Json:
    """Return an event's payload as a plain JSON object, whatever its type; members keep their stored order."""
    payload: Any = event.payload
    if isinstance(payload, Payload):
        if payload.extra is not UNSET:
            return payload.extra
        return {name: value for name in payload.__struct_fields__ if (value := getattr(payload, name)) is not UNSET}
    return payload or {}


def envelope_members(event: Event) -> Json:
    """Return all members of an event's line, in the order of the specification, `log` left out."""
    if event.extra is not UNSET:
        base = {name: value for name, value in event.extra.items() if name != "log"}
    else:
        base = dict.fromkeys(ENVELOPE)
    name = event.event if isinstance(event, UnknownEvent) else event.__struct_config__.tag
    own = {field: getattr(event, field) for field in ENVELOPE if field != "event"}
    return base | own | {"event": name, "payload": payload_members(event)}


def encode(event: Event) -> bytes:
    """Return one compact line without its newline: the thirteen members in the order of the specification, then `log`.

    NaN, infinities, lone surrogates and integers beyond 64 bits are written as Python's json writes them. Raises
    TypeError for a value that JSON has no form for.
    """
    if isinstance(event, Fact) and event.extra is UNSET and not _has_extra(event.payload):
        try:
            return _in_order(event, _encoder.encode(event))
        except (UnicodeEncodeError, OverflowError, _NeedsSlowPath):
            pass
    line = dump_compact(envelope_members(event))
    if event.log is not UNSET:
        return line[:-1] + b',"log":' + bytes(event.log) + b"}"
    return line


class _NeedsSlowPath(Exception):
    pass


def _has_extra(payload: Any) -> bool:
    return isinstance(payload, Payload) and payload.extra is not UNSET


def _in_order(event: Fact, line: bytes) -> bytes:
    """msgspec writes the tag first; the specification has `run_id` first. Both heads have the same length."""
    if not math.isfinite(event.timestamp) or (b"null" in line and holds_non_finite(event.payload)):
        raise _NeedsSlowPath
    head = b'{"run_id":' + _encoder.encode(event.run_id) + _TAGS[type(event)]
    return head + line[len(head) :]


def holds_non_finite(value: Any) -> bool:
    """Return whether a float in it is NaN or infinite: msgspec would write null for it without a word."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(holds_non_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_non_finite, value))
    if isinstance(value, msgspec.Struct):
        return any(holds_non_finite(getattr(value, name)) for name in value.__struct_fields__)
    return False


def dump_compact(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return compact UTF-8 JSON by Python's json: shortest floats, NaN as `NaN`, lone surrogates as escapes."""
    return utf8(_compact_encoder(default or _plain_default).encode(value))


@lru_cache(maxsize=8)
def _compact_encoder(default: Callable[[Any], Any]) -> json.JSONEncoder:
    """Kept, because `json.dumps` makes one each time, which takes longer than most values do."""
    return json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=default)


def dump_pretty(value: Any, *, sort_keys: bool) -> bytes:
    """JSON as AgentCompass 1.0.1 writes its snapshot files: two spaces, UTF-8 unescaped, a newline at the end.

    The standard library's indenting is pure Python; laying out its compact text afterwards is 20 times as fast.
    """
    compact = utf8(json.dumps(value, ensure_ascii=False, sort_keys=sort_keys, default=str))
    try:
        return msgspec.json.format(compact, indent=2) + b"\n"
    except (msgspec.DecodeError, RecursionError):  # NaN, or a lone surrogate's escape
        return utf8(json.dumps(value, ensure_ascii=False, indent=2, sort_keys=sort_keys, default=str) + "\n")


def utf8(text: str) -> bytes:
    """UTF-8 bytes of JSON text; a lone surrogate, which UTF-8 has no form for, becomes its escape."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return _NOT_IN_UTF8.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode("utf-8")


def duplicate_keys(line: bytes) -> list[str]:
    """Return names that stand twice in one object of a line; the last value is the one that counts."""
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> Json:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            found.extend(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        return members

    try:
        json.loads(line.removeprefix(BYTE_ORDER_MARK), object_pairs_hook=note)
    except (ValueError, RecursionError):
        return []
    return found


def _plain_default(value: Any) -> Any:
    """The same for Python's encoder, which knows fewer types: dates, dataclasses and sets as msgspec writes them."""
    return msgspec.to_builtins(value, enc_hook=plain_form)


def _json_type(value: object) -> str:
    names = {list: "array", str: "string", int: "number", float: "number", bool: "boolean"}
    return names.get(type(value), "null")
