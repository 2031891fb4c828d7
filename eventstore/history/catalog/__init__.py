"""Rows kept and refreshed in a DuckDB file."""
