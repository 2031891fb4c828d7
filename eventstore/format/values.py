"""Values of any JSON as what a reader needs: a text, a number, an object, a time; and the other way for times."""

from datetime import UTC, datetime
from typing import Any

from .events import Json


def as_text(value: Any) -> str | None:
    """Return a text, None for anything else."""
    return value if isinstance(value, str) else None


def as_object(value: Any) -> Json:
    """Return an object, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_number(value: Any) -> float | None:
    """Return a number that a float can hold; None for anything else, booleans included."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def iso_utc(timestamp: float | None) -> str | None:
    """Return a Unix time in seconds as ISO 8601 in UTC, to the microsecond; None for what is not a moment in time."""
    try:
        return None if timestamp is None else datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="microseconds")
    except (OverflowError, ValueError, OSError):
        return None


def unix_time(text: Any) -> float | None:
    """Return the Unix time in seconds of an ISO 8601 text with an offset; None for anything else."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (TypeError, ValueError, OverflowError):
        return None


def shorten(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, an ellipsis at its end where it was longer."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def short(value: Any) -> str:
    """Return a value from a record for a message: its Python form, shortened to 80 characters."""
    return shorten(repr(value), 80)
