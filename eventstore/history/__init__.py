"""SQL over every recorded run; the only place that imports duckdb, and late."""
