"""Whether a file that a user names for a catalog is one, or somebody else's."""

from pathlib import Path
from typing import Any

_MAGIC = slice(8, 12)
_TABLE = "SELECT count(*) FROM duckdb_columns() WHERE database_name = 'named' AND table_name = 'catalog'"


def is_catalog(file: Path) -> bool:
    """Return whether a file may be replaced by a catalog: it is one, or a DuckDB file that can't be read any more.

    A database of the user's own, and whatever is not a DuckDB file, may not. A file of NUL bytes, as a power loss
    leaves one, may.
    """
    import duckdb

    with open(file, "rb") as content:
        begin = content.read(4096)
    if begin[_MAGIC] != b"DUCK":
        return not begin.strip(b"\0")
    connection: Any = duckdb.connect()
    try:
        quoted = str(file).replace("'", "''")
        connection.execute(f"ATTACH '{quoted}' AS named (READ_ONLY)")
        row = connection.execute(f"{_TABLE} AND column_name = 'version'").fetchone()
        return bool(row and row[0])
    except duckdb.Error:
        return True  # damaged, or locked by its writer
    finally:
        connection.close()
