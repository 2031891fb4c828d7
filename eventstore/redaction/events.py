"""Redaction of events on their way into a stream: payloads, never the envelope's own names."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, structs

from eventstore.errors import UsageError
from eventstore.format.events import (
    ENVELOPE,
    SEVERITIES,
    Event,
    ReuseLoadedPayload,
    TaskFinishedPayload,
    TasksLoadedPayload,
    TaskStartedPayload,
)

from .redactor import Redactor

_NUMBERS_ONLY = frozenset({TaskStartedPayload, TasksLoadedPayload, ReuseLoadedPayload})


class Masker:
    """Masks secrets in events. `secrets` are values to mask wherever they stand."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._redact = Redactor(secrets).redact

    def mask(self, event: Event) -> Event:
        """The event itself if its payload holds no secret, else a copy. Raises UsageError for one nested too deeply."""
        try:
            payload: Any = event.payload
            if event.extra is UNSET and (not payload or _is_plain(payload)):
                return event
        except AttributeError:
            raise UsageError(f"a {type(event).__name__} is no event") from None
        return self._mask(event, payload)

    def _mask(self, event: Event, payload: Any) -> Event:
        changes: dict[str, Any] = {}
        try:
            masked = self._redact(payload)
            if masked is not payload:
                changes["payload"] = masked
            if event.extra is not UNSET:
                foreign = {name: value for name, value in event.extra.items() if name not in ENVELOPE}
                changes["extra"] = event.extra | self._redact(foreign)
        except ValueError as error:
            raise UsageError(f"the event can't be written: {error}") from None
        return structs.replace(event, **changes) if changes else event


def _is_plain(payload: Any) -> bool:
    """Return whether a typed payload has numbers only, or one of three words beside them: most events by far."""
    kind = type(payload)
    if kind in _NUMBERS_ONLY:
        return payload.extra is UNSET
    if kind is not TaskFinishedPayload or payload.extra is not UNSET:
        return False
    severity = payload.severity
    return not severity or severity is UNSET or severity in SEVERITIES
