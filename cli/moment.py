"""`--at-event` and `--at-time`: a point in a run's stream, given on the command line."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from eventstore.errors import UsageError
from eventstore.operations.moment import Moment

F = TypeVar("F", bound=Callable[..., Any])


def moment_options(command: F) -> F:
    """Return the two options, for a command that can look at an earlier moment."""
    at_time = click.option("--at-time", metavar="T", help="State up to the last event at or before T (ISO 8601, Unix).")
    at_event = click.option("--at-event", metavar="N", type=click.IntRange(min=0), help="State after N events.")
    return at_event(at_time(command))


def parse_moment(at_event: int | None, at_time: str | None) -> Moment | None:
    """Return the moment that was asked for, or None. A time without a zone is UTC. Raises UsageError."""
    if at_event is not None and at_time is not None:
        raise UsageError("--at-event and --at-time exclude each other")
    if at_event is not None:
        return Moment(events=at_event)
    return None if at_time is None else Moment(timestamp=parse_time(at_time))


def parse_time(text: str) -> float:
    """Unix seconds of a time written as such or as ISO 8601. Raises UsageError."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time: give Unix seconds or ISO 8601, as 2026-03-01T14:32:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
