"""`compass-es replay RUN`: fold the stream, rebuild the snapshots where they differ, tell what changed."""

from pathlib import Path

import click

from eventstore.operations.replay import Replayed, replay_run
from eventstore.operations.reports.replay import replay_report

from . import output
from .moment import moment_options, parse_moment


@click.command(name="replay")
@click.argument("run", type=click.Path(path_type=Path))
@moment_options
@click.option("--dry-run", is_flag=True, help="Show what would change; write nothing.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write both snapshots to DIR instead.")
@click.option("--force", is_flag=True, help="Write although the stream is damaged, behind its snapshot, or live.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    run: Path, at_event: int | None, at_time: str | None, dry_run: bool, out: Path | None, force: bool, as_json: bool
) -> int:
    """Fold the stream of RUN and rebuild progress.json and run_info.json where they differ.

    Nothing is ever lost: a file that is replaced stays next to its successor as NAME.replaced-1. A damaged stream, a
    snapshot that knows more than the stream, and a writer at work are refused (exit 1) unless --force is given.
    """
    moment = parse_moment(at_event, at_time)
    replayed = replay_run(run, write=not dry_run, force=force, moment=moment, out=out)
    if as_json:
        output.print_json(replay_report(replayed))
    elif moment is not None and out is None:
        _print_state(replayed)
    else:
        _tell(replayed, dry_run)
    return output.FOUND if replayed.refusals else output.OK


def _print_state(replayed: Replayed) -> None:
    output.say(f"{replayed.run_dir}: state after {replayed.events} events")
    click.echo(output.clean_json(replayed.snapshots.progress))


def _tell(replayed: Replayed, dry_run: bool) -> None:
    say = output.say
    for problem in replayed.problems:
        say(output.clean(problem))
    say(f"{output.clean(replayed.run_dir)}: {replayed.events} events{_verdict_words(replayed.verdicts)}")
    if replayed.snapshots.analysis_only:
        say("  the stream is a re-analysis: it describes no evaluation, run_info.json stays as it is")
    for refusal in replayed.refusals:
        say(f"  refused: {output.clean(refusal)}")
    if replayed.written:
        say(f"  written: {', '.join(replayed.written)}")
    if replayed.backups:
        say(f"  the originals are kept as {', '.join(replayed.backups)}")
    if replayed.changed and not replayed.written:
        say(f"  {'would change' if dry_run else 'differ'}: {', '.join(replayed.changed)}")
    if replayed.changed or replayed.written or replayed.refusals:
        return
    if replayed.events:
        say("  nothing to do: the snapshots agree with the stream")
    else:
        say("  nothing to do: no event was recorded, so there is nothing to rebuild from")


def _verdict_words(verdicts: dict[str, int]) -> str:
    return "".join(f", {count} {name}" for name, count in verdicts.items() if name != "unsealed")
