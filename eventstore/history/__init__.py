"""SQL over every recorded run; the only place that imports duckdb, and late."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventstore.history.sql.access import connect

__all__ = ["connect"]


def __getattr__(name: str) -> Any:
    """`connect`, loaded when it is asked for: `verify` needs a small part of this package, and only sometimes."""
    if name != "connect":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eventstore.history.sql.access import connect

    return connect
