"""`compass-es export PATH --to parquet DIR`: the history as files for other engines."""

from pathlib import Path

import click

from eventstore.errors import UsageError

from . import output


@click.command(name="export")
@click.argument("words", nargs=-1, metavar="PATH DIR")
@click.option("--to", "form", type=click.Choice(["parquet"]), required=True)
@click.option("--catalog", type=click.Path(path_type=Path), metavar="FILE", help="Keep the catalog in FILE.")
@click.option("--overwrite", is_flag=True, help="Replace files in DIR that no earlier export has written.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(words: tuple[str, ...], form: str, catalog: Path | None, overwrite: bool, as_json: bool) -> int:
    """Write all views over the runs at and below PATH to DIR, as Parquet partitioned by benchmark and month.

    Only partitions in which a run changed are written again. Spark, Trino, ClickHouse, polars and DuckDB read the
    folder of a view as one table.

    Texts are written as the records have them, as query shows them: payloads, plans, answers, parameters and log lines
    may hold credentials.
    """
    if len(words) != 2:
        raise UsageError("name a PATH with runs and a DIR to write to: compass-es export PATH --to parquet DIR")
    path, folder = Path(words[0]), Path(words[1])
    from eventstore.history.sql.access import CatalogChoice
    from eventstore.history.sql.export import export_parquet

    problems: list[str] = []
    done = export_parquet(
        [path],
        folder,
        choice=CatalogChoice(file=catalog),
        overwrite=overwrite,
        on_problem=lambda where, words: problems.append(f"{where}: {words}"),
    )
    for problem in problems:
        output.say(output.clean(problem))
    if as_json:
        from eventstore.operations.reports.history import export_report

        output.print_json(export_report(done))
    else:
        output.say(
            f"{done.partitions} partitions in {output.clean(folder)}: {done.written} written ({done.rows} rows),"
            f" {done.unchanged} unchanged, {done.removed} removed, {done.seconds:.2f} s"
        )
        output.say(
            "payloads and logs are exported as they are: compass-es verify --only secret names credentials in runs, "
            "compass-es scrub makes copies without"
        )
    return output.OK
