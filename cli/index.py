"""`compass-es index PATH`: build or refresh the catalog that `query` answers from."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from . import output


@click.command(name="index")
@click.argument("path", type=click.Path(path_type=Path), default=Path())
@click.option("--catalog", type=click.Path(path_type=Path), metavar="FILE", help="Keep the catalog in FILE.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes that read; default: the cores.")
@click.option("--rebuild", is_flag=True, help="Read everything again, whatever the catalog has.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(path: Path, catalog: Path | None, workers: int | None, rebuild: bool, as_json: bool) -> int:
    """Bring the catalog of all runs at and below PATH up to date.

    `query` does the same by itself; this is for a first build of a large history. The catalog is a cache: deleting it
    loses nothing.
    """
    from eventstore.history.sql import access

    problems: list[str] = []
    with _progress() as progress:
        done, file = access.index(
            path,
            catalog,
            on_problem=lambda where, words: problems.append(f"{where}: {words}"),
            progress=progress,
            workers=workers,
            rebuild=rebuild,
        )
    for problem in problems:
        output.say(output.clean(problem))
    if as_json:
        from eventstore.operations.reports.history import index_report

        output.print_json(index_report(done, file))
    else:
        output.say(
            f"{done.runs} runs, {done.events} events in {output.clean(file)}: {done.read} runs read"
            f" ({done.appended} from where they stood), {done.removed} removed, {done.bytes_read} bytes,"
            f" {done.seconds:.2f} s"
        )
    return output.OK


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr while a terminal is there to see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda count, total: bar.update(task, completed=count, total=total)
