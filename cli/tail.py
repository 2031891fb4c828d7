"""`compass-es tail RUN`: its events as JSON lines, those that are there and those to come."""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from eventstore.operations.tail import EventFilter, Tail

from . import output
from .moment import parse_time

POLL_SECONDS = 1.0


@click.command(name="tail")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--task", "tasks", multiple=True, metavar="TASK", help="Only events of tasks with this in their id.")
@click.option("--event", "events", multiple=True, metavar="NAME", help="Only events of this name.")
@click.option("--phase", "phases", multiple=True, metavar="PHASE", help="Only events of this phase.")
@click.option("--since", metavar="T", help="Only events at or after T (ISO 8601, or Unix seconds).")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Of what is there, only the last N.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the run ends or Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, hidden=True, help="Lines are always JSON.")
def command(
    run: Path,
    tasks: tuple[str, ...],
    events: tuple[str, ...],
    phases: tuple[str, ...],
    since: str | None,
    lines: int | None,
    follow: bool,
    as_json: bool,
) -> int:
    """Print the events of RUN as JSON lines, one event a line, filtered; several values of one option mean any of them.

    With --follow it waits for more: a stream that is replaced or cut is read from its front again, a half line waits
    until it is whole, and it ends when the run has ended.
    """
    wanted = EventFilter(tasks=tasks, events=events, phases=phases, since=None if since is None else parse_time(since))
    tail = Tail(run, wanted)
    for line in _last(_lines(tail), lines):
        click.echo(line)
    _say_errors(tail)
    if not follow:
        tail.refuse_unknown_names()
        return _leave(tail)
    if (words := tail.unknown_names()) is not None:
        output.say(output.clean(words))
    while not tail.ended:
        tail.wait(POLL_SECONDS)
        restarts = tail.restarts
        for line in _lines(tail):
            click.echo(line)
        if tail.restarts > restarts:
            output.say("the stream was replaced or cut; read from its front again")
        _say_errors(tail)
    return output.OK


def _leave(tail: Tail) -> int:
    if not tail.has_stream:
        output.say(f"{output.clean(tail.run_dir)}: no event has been recorded")
    elif tail.problem is not None:
        output.say(f"compass-es: {output.clean(tail.problem)}")
        return output.UNUSABLE
    return output.OK


def _lines(tail: Tail) -> Iterator[str]:
    """Yield the new events as lines: pure ASCII, so that nothing in a record can steer a terminal."""
    for members in tail.read():
        yield json.dumps(output.plain(members))


def _last(lines: Iterator[str], count: int | None) -> Iterable[str]:
    """Return the last `count` lines, all for None; every line is read, also for none."""
    return lines if count is None else deque(lines, maxlen=count)


def _say_errors(tail: Tail) -> None:
    for finding in tail.errors:
        output.say(f"line {finding.line}: {finding.code}: {output.clean(finding.message, 300)}")
