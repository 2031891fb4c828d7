"""SQL over every recorded run; the only place that imports duckdb, and late."""

from .session import connect

__all__ = ["connect"]
