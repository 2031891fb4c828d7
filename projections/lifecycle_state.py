"""What the lifecycle automaton carries: the state of a run, its tasks and attempts, and how lines are looked into."""

from typing import Any, TypeGuard

import msgspec
from msgspec import Raw, Struct, field

from eventstore import codec
from eventstore.errors import MalformedLineError
from eventstore.events import Json

from .noting import Notes, Place

NEVER = b"\0never"
"""Bytes that no line holds."""


class Attempt(Struct):
    """One attempt: retries used so far, plans seen, and whether it is over."""

    retries: int = 0
    plans: int = 0
    finished: bool = False


class Task(Struct):
    """One task. `known`, `known_before`: spellings of attempt and phase whose attempts are known to be going on."""

    known: bytes = NEVER
    known_before: bytes = NEVER
    last: bytes = b""
    category: Any = None
    position: tuple[Any, Any] = (None, None)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    saved: int = 0
    status: str | None = None
    severity: str | None = None


class State(Struct):
    """`active`, `finished` and `cut_off` (open when the run ended) hold tasks by id.

    `sessions` counts `run_started`; the limits come from the request.

    `live` is the evidence of a writer at work, set by whoever can see it before `finish`.
    """

    notes: Notes
    attempts_limit: int | None = None
    retries_limit: int | None = None
    active: dict[str, Task] = field(default_factory=dict)
    finished: dict[str, Task] = field(default_factory=dict)
    cut_off: dict[str, Task] = field(default_factory=dict)
    positions: dict[Any, str] = field(default_factory=dict)
    sessions: int = 0
    events: int = 0
    analyzes: bool = False
    evaluates: bool = False
    total_tasks: int | None = None
    reused_tasks: int = 0
    reuse_known: bool = False
    loaded: bool = False
    reuse_loaded: bool = False
    summarizing: bool = False
    status: str | None = None
    ended: Json | None = None
    started: Json | None = None
    last_timestamp: float | None = None
    unknown_events: set[str] = field(default_factory=set)
    clock_steps: int = 0
    live: str | None = None


class Envelope(Struct, gc=False):
    """What the rules need of a line; values of odd types are kept as they are."""

    category: str | None = None
    attempt: int | None = None
    phase: str | None = None
    status: str | None = None
    payload: Raw = Raw(b"{}")


_envelope_decoder = msgspec.json.Decoder(Envelope)


def envelope_of(line: bytes) -> Envelope:
    """The members of a line that the rules need; never raises."""
    try:
        return _envelope_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _odd_envelope(line)


def _odd_envelope(line: bytes) -> Envelope:
    try:
        members = codec.parse_object(line)
    except MalformedLineError:
        return Envelope()
    payload = members.get("payload")
    return Envelope(
        category=members.get("category"),
        attempt=members.get("attempt"),
        phase=members.get("phase"),
        status=members.get("status"),
        payload=Raw(codec.dump_compact(payload if isinstance(payload, dict) else {})),
    )


def payload_of(envelope: Envelope) -> Json:
    """The payload as an object; empty where it can't be held."""
    try:
        payload = codec.parse_object(bytes(envelope.payload))
    except MalformedLineError:
        return {}
    return payload


def require(state: State, place: Place, payload: Json, event: str, names: tuple[str, ...], **about: Any) -> None:
    """Note the members that a payload lacks."""
    missing = [name for name in names if payload.get(name) is None]
    if missing:
        state.notes.add("payload_incomplete", f"{event} without {', '.join(missing)}", place, **about)


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def short(value: Any) -> str:
    """A value from a record for a message: its Python form, cut."""
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
