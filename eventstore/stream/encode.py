"""Events to lines that wait for their seal: `run_id`, time and orchestration filled in on the bytes themselves.

The fast way encodes an event once and replaces its head and tail, both of a known spelling; whatever it can't carry
(foreign members, NaN, lone surrogates, a time of its own) goes through `codec.encode`, to the same bytes.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Struct, structs

from eventstore.errors import UsageError
from eventstore.format import codec
from eventstore.format.events import KNOWN_EVENTS, Event, Fact, Payload, UnknownEvent

NO_ORIGIN = b'"orchestration_id":null,"request_key":null,"request_name":null,"request_index":null}'
_PAYLOAD, _NULL = b'"payload":', b"null"
_BEFORE_ORIGIN = -len(NO_ORIGIN)


class Origin(Struct, frozen=True):
    """Where a run belongs in an orchestration; all None for a standalone request."""

    orchestration_id: str | None = None
    request_key: str | None = None
    request_name: str | None = None
    request_index: int | None = None


class Speller:
    """Spells the events of one run. `clock` gives Unix time for events that carry none."""

    def __init__(self, run_id: str, origin: Origin | None = None, clock: Callable[[], float] = time.time) -> None:
        self.run_id = run_id
        self._origin = origin or Origin()
        self._clock = clock
        self._encode = msgspec.json.Encoder(enc_hook=codec.plain_form).encode
        self._tail = _origin_tail(self._origin)
        self._heads = {kind: _heads(kind, run_id) for kind in KNOWN_EVENTS.values()} if _is_plain(run_id) else {}

    def speller(self) -> Callable[[Event], bytes]:
        """Return the function that spells: what it needs is bound to it, because it is called once an event.

        It gives a compact line without its closing brace. Raises UsageError for what is no event of this run.
        """
        known_heads, encode, clock, tail = self._heads, self._encode, self._clock, self._tail
        slowly, holds_non_finite = self._spell_slowly, codec.holds_non_finite

        def spell(event: Any) -> bytes:
            known = known_heads.get(type(event))
            if known is None or event.timestamp or event.run_id or event.extra is not UNSET or event.log is not UNSET:
                return slowly(event)
            start, skipped, typed = known
            payload = event.payload
            if typed and (type(payload) is dict or payload.extra is not UNSET):
                return slowly(event)
            try:
                text = encode(event)
            except (TypeError, ValueError, RecursionError):
                return slowly(event)
            if payload and text.find(_NULL, text.find(_PAYLOAD), _BEFORE_ORIGIN) > 0 and holds_non_finite(payload):
                return slowly(event)  # msgspec writes null for NaN, without a word
            if tail is not None and text.endswith(NO_ORIGIN):
                return b"%b%b%b%b" % (start, encode(clock()), text[skipped:_BEFORE_ORIGIN], tail)
            return start + encode(clock()) + text[skipped:-1]

        return spell

    def _spell_slowly(self, event: Event) -> bytes:
        try:
            return codec.encode(self.complete(event))[:-1]
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the event can't be written as JSON: {error}") from None

    def complete(self, event: Event) -> Event:
        """Return the event with everything that the log fills in. Raises UsageError for another run's event."""
        if not isinstance(event, Fact | UnknownEvent):
            raise UsageError(f"a {type(event).__name__} is no event")
        if event.run_id and event.run_id != self.run_id:
            raise UsageError(f"the event belongs to run {event.run_id}, not to {self.run_id}")
        fields: dict[str, Any] = {"run_id": self.run_id, "log": UNSET}
        if not event.timestamp:
            fields["timestamp"] = self._clock()
        if (event.orchestration_id, event.request_key, event.request_name, event.request_index) == (None,) * 4:
            fields |= structs.asdict(self._origin)
        return structs.replace(event, **fields)


def _is_plain(run_id: str) -> bool:
    try:
        run_id.encode()
    except UnicodeEncodeError:
        return False
    return True


def _heads(kind: type[Fact], run_id: str) -> tuple[bytes, int, bool]:
    """How a line of this type begins, up to the time; how many of the encoder's bytes that replaces; typed or not."""
    tag = kind.__struct_config__.tag.encode()  # type: ignore[union-attr]
    encoded = b'{"event":"%b","run_id":"","timestamp":0' % tag
    start = b'{"run_id":%b,"event":"%b","timestamp":' % (msgspec.json.encode(run_id), tag)
    return start, len(encoded), isinstance(kind().payload, Payload)


def _origin_tail(origin: Origin) -> bytes | None:
    """Return how a line ends, without the closing brace; None where nothing is to be filled in."""
    return None if origin == Origin() else codec.dump_compact(structs.asdict(origin))[1:-1]
