"""What the lifecycle automaton carries: the state of a run, its tasks and attempts, and how lines are looked into."""

import re
from typing import Any, TypeGuard

import msgspec
from msgspec import Struct, field

from eventstore.errors import MalformedLineError
from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.format.values import as_object
from projections import sessions

from .findings import Notes, Place

ATTEMPT = b'"attempt":'
PHASE = b'"phase":'
CATEGORY, PAYLOAD = b'"category":', b'"payload":'
_SPELLING = re.compile(rb'"attempt": ?\d{1,9}, ?"phase": ?"')
_TIMES_DIFFER_BY = 12  # digits
_PART = re.compile(
    rb'"category": ?(?:"[^"\\]{0,100}"|null), ?"attempt": ?(?:\d{1,9}|null), ?"phase": ?(?:"[^"\\]{0,100}"|null), ?'
    rb'"status": ?(?:"[^"\\]{0,100}"|null), ?'
)


class Attempt(Struct, gc=False):
    """One attempt: retries used so far, plans seen, and whether it is over."""

    retries: int = 0
    plans: int = 0
    finished: bool = False


class Task(Struct, gc=False):
    """One task. `spellings` are the bytes from attempt to phase of attempts that are known to be going on.

    They are `width` bytes long and stand at or behind `position_of_attempt`: times differ by a few digits only. In the
    line that was looked at last they stood at `usual_start`.
    """

    spellings: dict[bytes, Any] = field(default_factory=dict)
    width: int = 0
    position_of_attempt: int = 0
    usual_start: int = 0
    last: bytes = b""
    category: Any = None
    position: tuple[Any, Any] = (None, None)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    saved: int = 0
    status: str | None = None
    severity: str | None = None

    def forget(self, number: Any) -> None:
        """An attempt is over: its lines need a look again."""
        for spelling in [spelling for spelling, known in self.spellings.items() if known == number]:
            del self.spellings[spelling]

    def learn(self, line: bytes, number: Any) -> None:
        """This line's attempt is going on: others that spell it so need no second look."""
        start = line.find(ATTEMPT)
        end = line.find(PHASE, start) + len(PHASE)
        end += 2 if line[end : end + 1] == b" " else 1
        spelling = line[start:end]
        if spelling in _plain_spellings or _is_plain(spelling):
            self.spellings[spelling] = number
            self.width, self.position_of_attempt = len(spelling), max(0, start - _TIMES_DIFFER_BY)
            self.usual_start = start


_plain_spellings: set[bytes] = set()


def _is_plain(spelling: bytes) -> bool:
    plain = _SPELLING.fullmatch(spelling) is not None
    if plain and len(_plain_spellings) < _MAX_REMEMBERED:
        _plain_spellings.add(spelling)
    return plain


class State(Struct):
    """`active`, `finished` and `cut_off` (open when the run ended) hold tasks by id; so does `interrupted`, those that
    were open when another process took over and that it has not begun anew.

    `writers` tells whose session it is, `starts` counts `run_started`; the limits come from the request.

    `live` is the evidence of a writer at work, set by whoever can see it before `finish`.
    """

    notes: Notes
    attempts_limit: int | None = None
    retries_limit: int | None = None
    active: dict[str, Task] = field(default_factory=dict)
    finished: dict[str, Task] = field(default_factory=dict)
    cut_off: dict[str, Task] = field(default_factory=dict)
    positions: dict[Any, str] = field(default_factory=dict)
    interrupted: dict[str, Task] = field(default_factory=dict)
    writers: sessions.State = field(default_factory=sessions.State)
    starts: int = 0
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
    last_line: bytes = b""
    unknown_events: set[str] = field(default_factory=set)
    clock_steps: int = 0
    live: str | None = None


class Envelope(Struct, gc=False):
    """What the rules need of a line beside its payload; values of odd types are kept as they are."""

    category: str | None = None
    attempt: int | None = None
    phase: str | None = None
    status: str | None = None


class _WithPayload(Struct, gc=False):
    payload: Json | None = None


_envelope_decoder = msgspec.json.Decoder(Envelope)
_payload_decoder = msgspec.json.Decoder(_WithPayload)
_MAX_REMEMBERED = 4096
_remembered: dict[bytes, Envelope] = {}


def envelope_of(line: bytes) -> Envelope:
    """Return the members of a line that the rules need; never raises.

    In the order of the specification they stand side by side, from category to the payload, and few combinations of
    them make up a stream: a line whose bytes there were seen before needs no decoding.
    """
    start = line.find(CATEGORY)
    part = line[start : line.find(PAYLOAD, start)] if start > 0 else b""
    envelope = _remembered.get(part)
    if envelope is None:
        envelope = _decode_envelope(line)
        if _PART.fullmatch(part):
            if len(_remembered) >= _MAX_REMEMBERED:
                _remembered.clear()
            _remembered[part] = envelope
    return envelope


def _decode_envelope(line: bytes) -> Envelope:
    try:
        return _envelope_decoder.decode(line)
    except codec.REFUSALS:
        try:
            members = codec.parse_object(line)
        except MalformedLineError:
            return Envelope()
        names: tuple[str, ...] = Envelope.__struct_fields__
        return Envelope(**{name: members.get(name) for name in names})


def payload_of(line: bytes) -> Json:
    """Return a line's payload as an object; empty where it can't be held."""
    try:
        payload = _payload_decoder.decode(line).payload
    except codec.REFUSALS:
        try:
            payload = codec.parse_object(line).get("payload")
        except MalformedLineError:
            return {}
    return as_object(payload)


def require(state: State, place: Place, payload: Json, event: str, names: tuple[str, ...], **about: Any) -> None:
    """Note the members that a payload lacks."""
    missing = [name for name in names if payload.get(name) is None]
    if missing:
        state.notes.add("payload_incomplete", f"{event} without {', '.join(missing)}", place, **about)


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
