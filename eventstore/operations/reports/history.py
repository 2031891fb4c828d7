"""What `index`, `export` and `query --list` print with `--json`."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from eventstore.history.catalog.catalog import Refreshed
from eventstore.history.sql.access import describe_views
from eventstore.history.sql.export import Exported
from eventstore.history.sql.questions import Question, names, question


class IndexReport(Struct, frozen=True, kw_only=True):
    """The state of a catalog, and what a refresh did.

    `runs` and `events` count what the catalog holds. `bytes_read` counts bytes of streams. Of the runs that were read,
    `runs_appended` were read from where an earlier refresh had stopped.
    """

    schema: Literal["compass-es.index.v1"] = "compass-es.index.v1"
    runs: int
    events: int
    bytes_read: int
    duration_seconds: float
    runs_read: int
    runs_appended: int
    runs_removed: int
    catalog: str


class ExportReport(Struct, frozen=True, kw_only=True):
    """What an export did: partitions by what became of them, and the rows in those that were written."""

    schema: Literal["compass-es.export.v1"] = "compass-es.export.v1"
    partitions: int
    partitions_written: int
    partitions_unchanged: int
    partitions_removed: int
    rows: int
    duration_seconds: float


class QueryListReport(Struct, frozen=True, kw_only=True):
    """The views with the names of their columns, and the canned questions."""

    schema: Literal["compass-es.query-list.v1"] = "compass-es.query-list.v1"
    views: dict[str, list[str]]
    questions: list[Question]


def index_report(done: Refreshed, catalog: Path) -> IndexReport:
    """Return the document of a refresh."""
    return IndexReport(
        runs=done.runs,
        events=done.events,
        bytes_read=done.bytes_read,
        duration_seconds=round(done.seconds, 3),
        runs_read=done.read,
        runs_appended=done.appended,
        runs_removed=done.removed,
        catalog=str(catalog),
    )


def export_report(done: Exported) -> ExportReport:
    """Return the document of an export."""
    return ExportReport(
        partitions=done.partitions,
        partitions_written=done.written,
        partitions_unchanged=done.unchanged,
        partitions_removed=done.removed,
        rows=done.rows,
        duration_seconds=round(done.seconds, 3),
    )


def query_list_report() -> QueryListReport:
    """Return what SQL may ask of, and the questions that are there already."""
    return QueryListReport(views=describe_views(), questions=[question(name) for name in names()])
