"""`compass-es scrub RUN OUT`: a copy of a run that can be shared, credentials masked everywhere."""

from pathlib import Path

import click

from eventstore.operations.reports.scrub import scrub_report
from eventstore.operations.scrub import Scrubbed, scrub_run

from . import output

SHOWN = 40


@click.command(name="scrub")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(run: Path, out: Path, as_json: bool) -> int:
    """Copy RUN to OUT, which must not exist, with all credentials masked; RUN stays as it is.

    A sealed stream is sealed again and ends with a stream_scrubbed event. Binary files are copied as they are and
    listed: look at them before you share the copy. Exit code 1: the copy was made, and verify still finds credentials.
    """
    scrubbed = scrub_run(run, out)
    if as_json:
        output.print_json(scrub_report(scrubbed))
    else:
        _tell(scrubbed)
    return output.FOUND if scrubbed.credentials_left else output.OK


def _tell(scrubbed: Scrubbed) -> None:
    say, clean = output.say, output.clean
    say(f"{clean(scrubbed.out)}: {scrubbed.files} files, credentials masked in {len(scrubbed.masked)}")
    for title, names in (
        ("masked", scrubbed.masked),
        ("binary, copied as it is", scrubbed.binary),
        ("left out", scrubbed.left_out),
    ):
        for name in names[:SHOWN]:
            say(f"  {title}: {clean(name)}")
        if len(names) > SHOWN:
            say(f"  … and {len(names) - SHOWN} more (--json has all)")
    if scrubbed.credentials_left:
        say(f"  {scrubbed.credentials_left} still look like credentials: compass-es verify --secrets all names them")
