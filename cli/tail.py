"""`compass-es tail RUN`: its events as JSON lines, those that are there and those to come."""

import json
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of what is there, only the last N; without a filter, a long stream is read from its end.",
)
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
    found = tail.read() if lines is None else _last(tail, lines, follow)
    for members in found:
        click.echo(_line(members))
    _say_errors(tail)
    if not follow:
        tail.refuse_unknown_names()
        return _leave(tail)
    if (words := tail.unknown_names()) is not None:
        output.say(output.clean(words))
    while not tail.ended:
        tail.wait(POLL_SECONDS)
        restarts = tail.restarts
        for members in tail.read():
            click.echo(_line(members))
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


def _line(members: dict[str, Any]) -> str:
    """Return an event as a line: pure ASCII, so that nothing in a record can steer a terminal."""
    return json.dumps(output.plain(members))


def _last(tail: Tail, count: int, follow: bool) -> Iterable[dict[str, Any]]:
    """Return the last `count` events; whoever follows has to know all that stands before what comes."""
    return deque(tail.read(), maxlen=count) if follow else tail.read_last(count)


def _say_errors(tail: Tail) -> None:
    for finding in tail.errors:
        output.say(f"line {finding.line}: {finding.code}: {output.clean(finding.message, 300)}")
