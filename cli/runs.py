"""`compass-es runs PATH`: one row a run."""

import os
from pathlib import Path
from typing import Any

import click

from eventstore.operations.status import RunList, RunSummary, run_rows

from . import output
from .paging import no_pager_option, paged

COLUMNS = ("run", "status", "life", "tasks", "failed", "errors", "retries", "duration", "last event", "error")


@click.command(name="runs")
@click.argument("path", type=click.Path(path_type=Path))
@no_pager_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(path: Path, no_pager: bool, as_json: bool) -> int:
    """List the runs at or below PATH: status, life, tasks, retries, duration, last event, error."""
    rows = list(run_rows(path, _tell_problem, processes=os.cpu_count() or 1))
    for row in rows:
        if row.problem:
            output.say(f"{output.clean(row.run_key)}: {output.clean(row.problem)}")
    if as_json:
        output.print_json(RunList(runs=rows))
    else:
        with paged(no_pager):
            output.print_table(COLUMNS, map(_cells, rows), right=("tasks", "failed", "errors", "retries", "duration"))
    return output.OK


def _tell_problem(path: str, words: str) -> None:
    output.say(f"{output.clean(path)}: {output.clean(words)}")


def _cells(row: RunSummary) -> list[Any]:
    return [
        row.run_key,
        row.status,
        row.life.state,
        f"{row.finished_tasks}/{row.total_tasks}",
        row.failed_tasks or "",
        row.error_tasks or "",
        row.retries or "",
        "clock stepped" if row.clock_stepped else output.duration(row.duration_seconds),
        moment_text(row.last_event_at),
        output.clean(row.error or "", 60),
    ]


def moment_text(moment: str | None) -> str:
    """Return a moment for people, to the second, from an ISO 8601 text in UTC."""
    return "" if moment is None else moment[:19].replace("T", " ")
