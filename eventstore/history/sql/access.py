"""Opening a history: find the runs, read them into tables, put the views on top, lock the door.

Without a catalog the tables are in memory. Whatever is wrong with one run directory never stops the others: it is told
to `on_problem`, and is a row of `damage` where a run has one.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from eventstore.errors import CompassError, InputError, OutputError
from eventstore.history.catalog import ingest
from eventstore.history.catalog.catalog import Catalog, Progress, Refreshed, check_place, default_file
from eventstore.history.catalog.spool import create_tables
from eventstore.history.rows.values import key_text
from eventstore.run.directory import RunDir, find_all, is_run_dir
from eventstore.run.liveness import life_of, paths_held_open
from eventstore.run.output_path import check_outside_runs

from . import guard
from .limits import LimitError

T = TypeVar("T")
Report = Callable[[str, str], None]
"""Told of a path and, in words, what is wrong with it."""


class CatalogChoice(Struct, frozen=True):
    """Whether and where a catalog is kept (None: the user's cache folder), and whether it is brought up to date.

    `doubted` reads all of it first, and builds it anew unless every row can be read; `rebuild` does so in any case.
    """

    file: Path | None = None
    off: bool = False
    refresh: bool = True
    doubted: bool = False
    rebuild: bool = False


def connect(
    *paths: str | os.PathLike[str],
    on_problem: Report | None = None,
    memory_limit: str | None = None,
    threads: int | None = None,
    locked: bool = True,
) -> Any:
    """Return a DuckDB connection with the views over all runs at and below `paths` (here, where none is given).

    It only reads: with `locked`, nothing outside the history can be reached by its SQL, and no setting changed.
    Raises InputError if a path is missing or is not a folder.
    """
    return open_history(
        paths, catalog=CatalogChoice(), on_problem=on_problem, memory_limit=memory_limit, threads=threads, locked=locked
    )


def open_history(
    paths: Sequence[str | os.PathLike[str]],
    *,
    catalog: CatalogChoice,
    on_problem: Report | None = None,
    memory_limit: str | None = None,
    threads: int | None = None,
    locked: bool = True,
    timeout_seconds: float | None = None,
) -> Any:
    """As `connect`, with a choice of catalog and a timeout for each statement.

    A catalog that turns out to be broken while it is opened is built anew. One that breaks later, in the midst of
    the caller's SQL, is not noticed here: see `with_history`, and guard.BrokenCatalogError.
    """
    runs = list(runs_below(paths, on_problem))
    for choice in _tries(catalog):
        try:
            with _catalog_errors():
                return _opened(
                    paths,
                    runs,
                    choice,
                    on_problem,
                    _open(memory_limit, threads),
                    locked=locked,
                    timeout_seconds=timeout_seconds,
                )
        except guard.BrokenCatalogError as error:
            problem = error.message
            if choice.rebuild and catalog.file is None:
                tell(on_problem, _first(paths), f"the catalog can't be built: {problem}")
    raise OutputError(f"the history can't be read: {problem}", catalog.file)


def _tries(choice: CatalogChoice) -> list[CatalogChoice]:
    """Return what to do in turn: as asked; the catalog built anew; none, where nobody asked for a certain one."""
    if choice.off:
        return [choice]
    first = [] if choice.rebuild else [choice]
    return [*first, replace(choice, rebuild=True), *([CatalogChoice(off=True)] if choice.file is None else [])]


@contextmanager
def _catalog_errors() -> Iterator[None]:
    """Where only our own SQL runs, whatever DuckDB doesn't like is the catalog's fault, or the disk's.

    Ctrl-C, which DuckDB reports as a RuntimeError, is KeyboardInterrupt again.
    """
    import duckdb

    try:
        yield
    except duckdb.InterruptException:
        raise
    except duckdb.OutOfMemoryException:
        raise LimitError("reading the runs needs more memory than is allowed") from None
    except duckdb.Error as error:
        raise guard.BrokenCatalogError(str(error).splitlines()[0]) from None
    except RuntimeError as error:
        raise (KeyboardInterrupt() if guard.is_interrupt(error) else error) from None


def _opened(
    paths: Sequence[str | os.PathLike[str]],
    runs: list[RunDir],
    choice: CatalogChoice,
    on_problem: Report | None,
    connection: Any,
    *,
    locked: bool,
    timeout_seconds: float | None,
) -> Any:
    try:
        if not (_use_catalog(connection, paths, runs, choice, on_problem)):
            connection.execute("ATTACH ':memory:' AS store")
            create_tables(connection, "store.main")
            load_runs(connection, runs)
        problems = _problems(connection)
        folders = {key_text(run.run_key): run.path for run in runs}
        finish(connection, folders, locked=locked, timeout_seconds=timeout_seconds)
    except BaseException:
        close(connection)
        raise
    for path, words in problems:
        tell(on_problem, Path(path), words)
    return connection


def close(connection: Any) -> None:
    """Close a connection that may have broken down."""
    with suppress(Exception):
        connection.close()


def with_history(
    paths: Sequence[str | os.PathLike[str]], work: Callable[[Any], T], *, catalog: CatalogChoice, **options: Any
) -> T:
    """Return `work(connection)` on a history opened with these options, which is closed afterwards.

    Where it raises guard.BrokenCatalogError, or DuckDB's own error of that kind, it is called once more, with a
    catalog that was read through and, unless sound, built anew.
    """
    for choice in (catalog, replace(catalog, doubted=True)):
        connection = open_history(paths, catalog=choice, **options)
        try:
            return work(connection)
        except Exception as error:
            if catalog.off or choice.doubted or not guard.is_broken(error):
                raise
        finally:
            close(connection)
    raise AssertionError("the second turn returns or raises")


def catalog_is_sound(paths: Sequence[str | os.PathLike[str]], choice: CatalogChoice) -> bool:
    """Whether all of the catalog that a history of these paths would use can be read; also where it would use none."""
    try:
        file = _catalog_file(paths, choice)
    except InputError:
        return True
    if file is None:
        return True
    connection = _open(None, None)
    try:
        return Catalog(connection, file).is_sound()
    finally:
        close(connection)


def _first(paths: Sequence[str | os.PathLike[str]]) -> Path:
    return Path(paths[0]) if paths else Path()


def _catalog_file(paths: Sequence[str | os.PathLike[str]], choice: CatalogChoice) -> Path | None:
    """Where the catalog of these paths is kept; None where there is to be none: each file is that of one folder."""
    if choice.off or (len(paths) > 1 and choice.file is None):
        return None
    return choice.file or default_file(_first(paths))


def index(
    path: str | os.PathLike[str],
    file: Path | None = None,
    *,
    on_problem: Report | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    rebuild: bool = False,
) -> tuple[Refreshed, Path]:
    """Build or refresh the catalog of all runs at and below `path`; returns what was done, and where the catalog is.

    Raises InputError if `path` can't be read, OutputError or LockedError if the catalog can't be written.
    """
    runs = list(runs_below([path], on_problem))
    where = file or default_file(Path(path))
    if file is not None:
        check_place(file)
    else:
        check_outside_runs(where)
    for again in (False, True):
        connection = _open(None, None)
        try:
            with _catalog_errors():
                done = Catalog(connection, where).refresh(runs, progress, workers, rebuild=rebuild or again)
                problems = _problems(connection)
        except guard.BrokenCatalogError as error:
            problem = error.message
            continue
        finally:
            close(connection)
        for run, words in problems:
            tell(on_problem, Path(run), words)
        return done, where
    raise OutputError(f"{where}: can't be built: {problem}", where)


def _use_catalog(
    connection: Any, paths: Sequence[Any], runs: list[RunDir], choice: CatalogChoice, on_problem: Report | None
) -> bool:
    """Attach an up-to-date catalog; False where there can be none, and the runs are read into memory instead."""
    if choice.file is not None:
        check_place(choice.file)
    try:
        file = _catalog_file(paths, choice)
        if file is None:
            return False
        catalog = Catalog(connection, file)
        anew = choice.rebuild or (choice.doubted and not catalog.is_sound())
        if not choice.refresh and not anew and catalog.attach():
            return True
        catalog.refresh(runs, rebuild=anew)
    except (OSError, CompassError) as error:
        connection.execute("DETACH DATABASE IF EXISTS store")
        if choice.file is not None:
            raise
        tell(on_problem, _first(paths), f"there is no catalog, so the runs are read each time: {error}")
        return False
    return True


def _problems(connection: Any) -> list[tuple[str, str]]:
    sql = "SELECT path, problem FROM store.main.runs WHERE problem IS NOT NULL ORDER BY run_key"
    rows: list[tuple[str, str]] = connection.execute(sql).fetchall()
    return rows


def describe_views() -> dict[str, list[str]]:
    """Return the columns of each view, in order."""
    connection = _open(None, None)
    try:
        connection.execute("ATTACH ':memory:' AS store")
        create_tables(connection, "store.main")
        finish(connection, {}, locked=True)
        rows = connection.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'memory' AND NOT internal"
            " AND table_name <> 'lives' ORDER BY table_oid, column_index"
        ).fetchall()
    finally:
        connection.close()
    views: dict[str, list[str]] = {}
    for view, column in rows:
        views.setdefault(view, []).append(column)
    return views


def _open(memory_limit: str | None, threads: int | None) -> Any:
    import duckdb

    connection = duckdb.connect(":memory:", config=guard.settings(memory_limit, threads))  # type: ignore[arg-type]
    connection.execute("SET TimeZone='UTC'")
    connection.execute("SET enable_progress_bar=false")
    return connection


def runs_below(paths: Sequence[str | os.PathLike[str]], on_problem: Report | None) -> Iterable[RunDir]:
    """Yield all runs at and below the paths; keys are relative to the path, or to what several have in common.

    Raises InputError where there is none below one of them.
    """
    folders = [Path(path) for path in paths] or [Path()]
    if len(folders) == 1:
        yield from find_all(folders, on_problem)
        return
    found = {os.path.realpath(run.path): run for run in find_all(folders, on_problem)}
    tops = [path.parent if is_run_dir(path) else path for path in (Path(os.path.realpath(f)) for f in folders)]
    common = os.path.commonpath(tops)
    for real in sorted(found):
        yield RunDir(found[real].path, os.path.relpath(real, common))


def load_runs(connection: Any, runs: list[RunDir]) -> None:
    """Read runs into the tables of `store`."""
    found = {key_text(run.run_key): (run, "") for run in runs}
    ingest.apply(connection, ingest.all_new(found), Refreshed())


def tell(on_problem: Report | None, path: Path, words: str) -> None:
    """Report a problem where somebody listens."""
    if on_problem is not None:
        on_problem(key_text(str(path)), words)


def finish(connection: Any, folders: dict[str, Path], *, locked: bool, timeout_seconds: float | None = None) -> None:
    """Put lives and views on top of `store`, then lock."""
    connection.execute("CREATE TABLE lives (run_key VARCHAR, life VARCHAR, evidence VARCHAR)")
    lives = list(_lives(connection, folders))
    for start in range(0, len(lives), 500):
        batch = lives[start : start + 500]
        marks = ", ".join(["(?, ?, ?)"] * len(batch))
        connection.execute(f"INSERT INTO lives VALUES {marks}", [value for row in batch for value in row])
    for statement in connection.extract_statements(views_sql()):
        connection.execute(statement)
    if locked:
        guard.lock_down(connection, timeout_seconds)


def views_sql() -> str:
    """Return the statements that make the views."""
    return resources.files(__package__).joinpath("views.sql").read_text("utf-8")


def _lives(connection: Any, folders: dict[str, Path]) -> Iterable[tuple[str, str, str]]:
    """Yield the life of each run without a final status, as of now."""
    unfinished = connection.execute(
        "SELECT run_key, path, damaged > 0, epoch_us(last_event_at) / 1e6 FROM store.main.runs WHERE NOT finished"
    ).fetchall()
    held = paths_held_open() if unfinished else frozenset()
    for run_key, path, damaged, last in unfinished:
        folder = folders.get(run_key, Path(path))
        try:
            words = "the stream is damaged" if damaged else None
            life = life_of(folder, damage=words, last_timestamp=last, open_paths=held)
        except (OSError, InputError) as error:
            yield run_key, "silent", f"can't be looked at: {error}"
            continue
        yield run_key, life.state, "; ".join(life.evidence)
