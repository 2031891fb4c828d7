"""What catalogs have seen of streams: how far, and the digests of their first and last bytes up to there.

    seen = known_prefixes([run.path, …])     # {run.path: Prefix(…)}, empty where there is no catalog
    seen[run.path].broken(run.path)          # None, or in words how the stream differs from what was seen

DuckDB is loaded only where there is a catalog of one of the folders above the runs, and then in a process of its own:
the caller may go on to fork.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec
import xxhash
from msgspec import Struct

from eventstore.errors import InputError
from eventstore.stream.line_reader import open_regular
from eventstore.stream.scan import STREAM_NAME

MAX_FIRST_LINE = 1 << 24


class Prefix(Struct, frozen=True):
    """The first `bytes` of a stream, as a catalog saw them: XXH3 of the first and the last few thousand of them.

    `run_id` and `last_event_at` (Unix seconds) are those of the run that it saw.
    """

    bytes: int
    head: str
    tail: str
    run_id: str | None = None
    last_event_at: float | None = None

    def broken(self, run_dir: Path) -> str | None:
        """Return how a stream that was only appended to since differs from what was seen; None where it doesn't."""
        from eventstore.history.rows.stream import probes

        path = run_dir / STREAM_NAME
        try:
            size = path.stat().st_size
        except OSError:
            return None  # that it is missing is told elsewhere
        if self._is_of_another_run(path):
            return None
        if size < self.bytes:
            return f"{size} bytes are there, and the catalog saw {self.bytes}"
        head, tail = probes(path, self.bytes)
        if not head:
            return None
        where = "at its beginning" if head != self.head else f"before byte {self.bytes}" if tail != self.tail else None
        return None if where is None else f"the stream is not what the catalog saw {where}"

    def _is_of_another_run(self, path: Path) -> bool:
        """Return whether a run was recorded under a name that was free again.

        Its first record has another run id, or is younger than the last record that the catalog saw.
        """
        first = _first_record(path)
        if first is None:
            return False
        if self.run_id is not None and first.run_id != self.run_id:
            return True
        return self.last_event_at is not None and first.timestamp > self.last_event_at


class _First(Struct):
    run_id: str
    timestamp: float


def _first_record(path: Path) -> _First | None:
    try:
        with open(open_regular(path), "rb") as file:
            return msgspec.json.decode(file.readline(MAX_FIRST_LINE), type=_First)
    except (OSError, InputError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class _Reached(Struct):
    offset: int
    head: str
    tail: str


class _Kept(Struct):
    reached: _Reached


_decoder = msgspec.msgpack.Decoder(_Kept)
_Seen: TypeAlias = tuple[int, str, str, str | None, float | None]


def known_prefixes(run_dirs: Iterable[Path]) -> dict[Path, Prefix]:
    """What the user's catalogs know of these runs' streams; of several catalogs the one of the nearest folder."""
    wanted = _catalogs_of(run_dirs)
    if not wanted:
        return {}
    if "duckdb" in sys.modules:
        return _as_prefixes(_read_all(wanted))
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
            return _as_prefixes(pool.submit(_read_all, wanted).result())
    except BrokenProcessPool:  # DuckDB may not survive a damaged catalog
        return {}


def cache_folder() -> Path:
    """Return where the user's catalogs are kept; it need not exist. Raises InputError where the user has no home."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(named or Path.home() / ".cache") / "compass-es"
    except RuntimeError:
        raise InputError("there is no folder for catalogs: set HOME or XDG_CACHE_HOME, or name one file") from None


def _as_prefixes(found: Mapping[str, _Seen]) -> dict[Path, Prefix]:
    return {Path(path): Prefix(*values) for path, values in found.items()}


def _catalogs_of(run_dirs: Iterable[Path]) -> dict[str, dict[str, list[str]]]:
    """Return catalog files, farthest folder first: the keys that they may have, with the paths that these stand for."""
    try:
        names = [name for name in os.listdir(cache_folder()) if name.endswith(".duckdb")]
    except (OSError, InputError):
        return {}
    if not names:
        return {}
    from eventstore.history.rows.tables import SCHEMA_VERSION
    from eventstore.history.rows.values import key_text

    files: dict[str, str] = {}
    for name in sorted(names):
        digest, _, version = name.partition("-")
        if version.startswith(f"s{SCHEMA_VERSION}-d"):
            files[digest] = str(cache_folder() / name)
    wanted: dict[tuple[int, str], dict[str, list[str]]] = {}
    for path in run_dirs if files else ():
        real = Path(os.path.realpath(path))
        for folder in (real, *real.parents):
            file = files.get(xxhash.xxh3_64_hexdigest(os.fsencode(folder)))
            if file is not None:
                key = real.name if folder == real else real.relative_to(folder).as_posix()
                keys = wanted.setdefault((len(folder.parts), file), {})
                keys.setdefault(key_text(key), []).append(os.fspath(path))
    return {file: keys for (_, file), keys in sorted(wanted.items())}


def _read_all(wanted: Mapping[str, Mapping[str, list[str]]]) -> dict[str, _Seen]:
    found: dict[str, _Seen] = {}
    for file, keys in wanted.items():
        for key, state, run_id, last in _read(file, list(keys)):
            try:
                reached = _decoder.decode(state).reached
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if reached.offset:
                found.update(dict.fromkeys(keys[key], (reached.offset, reached.head, reached.tail, run_id, last)))
    return found


def _read(file: str, keys: list[str]) -> list[tuple[str, bytes, str | None, float | None]]:
    """Return key and state of runs; nothing where the catalog can't be read now: it is a help, not a record."""
    import duckdb

    try:
        if os.lstat(file).st_uid != os.geteuid():
            return []
        with duckdb.connect(file, read_only=True) as connection:
            sql = """
                SELECT sources.run_key, state, run_id, epoch_us(last_event_at) / 1e6
                FROM sources LEFT JOIN runs USING (run_no)
                WHERE state IS NOT NULL AND sources.run_key IN (SELECT unnest(?))
            """
            rows: list[tuple[str, bytes, str | None, float | None]] = connection.execute(sql, [keys]).fetchall()
            return rows
    except (duckdb.Error, OSError):
        return []
