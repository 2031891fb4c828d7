"""`compass-es close RUN --status S`: give a run that died its terminal event."""

from pathlib import Path

import click

from eventstore.operations.close import CLOSING_STATUSES, Closed, close_run
from eventstore.operations.reports.close import close_report

from . import output


@click.command(name="close")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--status", required=True, type=click.Choice(CLOSING_STATUSES), help="How the run ended.")
@click.option("--error", metavar="TEXT", help="Why it ended, as far as you know.")
@click.option("--force", is_flag=True, help="Although run_info.json says that the run ended otherwise.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(run: Path, status: str, error: str | None, force: bool, as_json: bool) -> int:
    """Append run_finished to RUN, which died without it, and rebuild its snapshots.

    Refused (exit 1) if RUN has a terminal event, if its run_info.json says that it ended otherwise (unless --force is
    given), or if its writer may live; what was seen of it is shown.
    """
    words = None if error is None else output.utf8_text(error, "--error")
    closed = close_run(run, status, words, force=force)
    if as_json:
        output.print_json(close_report(closed))
    else:
        _tell(closed)
    return output.FOUND if closed.problems else output.OK


def _tell(closed: Closed) -> None:
    output.say(f"{output.clean(closed.run_dir)}: closed as {closed.status}; before, it was {closed.life.state}:")
    for fact in closed.evidence:
        output.say(f"  {output.clean(fact)}")
    if closed.written:
        output.say(f"  rebuilt: {', '.join(closed.written)}")
    for problem in closed.problems:
        output.say(f"  snapshots not rebuilt: {output.clean(problem)}")
