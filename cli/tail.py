"""`compass-es tail RUN`: its events as JSON lines, those that are there and those to come."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from eventstore.format import codec
from eventstore.format.records import VERDICTS, Block
from eventstore.run.directory import open_run
from eventstore.stream.follow import Follower
from eventstore.stream.scan import STREAM_NAME

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
    wanted = Filter(tasks, events, phases, None if since is None else parse_time(since))
    follower = Follower(open_run(run) / STREAM_NAME)
    found = _lines_of(follower, wanted)
    for line in found if lines is None else _last(found, lines):
        click.echo(line)
    _tell(follower)
    if not follow and not os.path.lexists(follower.path):
        output.say(f"{output.clean(run)}: no event has been recorded")
    elif not follow and follower.problem is not None:
        output.say(f"compass-es: {output.clean(follower.problem)}")
        return output.UNUSABLE
    while follow and not wanted.ended:
        follower.wait(POLL_SECONDS)
        restarts = follower.restarts
        for line in _lines_of(follower, wanted):
            click.echo(line)
        if follower.restarts > restarts:
            output.say("the stream was replaced or cut; read from its front again")
        _tell(follower)
    return output.OK


class Filter:
    """Which events are wanted; `ended` once a terminal event of the run has been seen."""

    def __init__(
        self, tasks: tuple[str, ...], events: tuple[str, ...], phases: tuple[str, ...], since: float | None
    ) -> None:
        self.tasks, self.events, self.phases, self.since = tasks, events, phases, since
        self.ended = False

    def wants(self, members: dict[str, Any]) -> bool:
        """Whether an event with these members passes."""
        task = members["task_id"]
        return (
            (not self.events or members["event"] in self.events)
            and (not self.phases or members["phase"] in self.phases)
            and (not self.tasks or (isinstance(task, str) and any(part in task for part in self.tasks)))
            and (self.since is None or members["timestamp"] >= self.since)
        )


def _lines_of(follower: Follower, wanted: Filter) -> Iterator[str]:
    for block in follower.read():
        yield from _lines_in(block, wanted)


def _lines_in(block: Block, wanted: Filter) -> Iterator[str]:
    for head, line in zip(block.heads, block.lines, strict=True):
        wanted.ended = wanted.ended or head.event == "run_finished"
        if wanted.events and head.event not in wanted.events:
            continue
        members = codec.envelope_members(codec.decode_accepted(line, head))
        if wanted.wants(members):
            # Pure ASCII: nothing in a record can steer a terminal.
            yield json.dumps(output.plain(members))


def _last(lines: Iterator[str], count: int) -> list[str]:
    from collections import deque

    return list(deque(lines, maxlen=count)) if count else [*deque(lines, maxlen=0)]


def _tell(follower: Follower) -> None:
    for finding in follower.new_findings:
        if VERDICTS.get(finding.code) == "error":
            output.say(f"line {finding.line}: {finding.code}: {output.clean(finding.message, 300)}")
