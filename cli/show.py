"""`compass-es show RUN`: the status page of one run."""

from pathlib import Path
from typing import Any

import click

from eventstore.operations.status import Flight, PhaseTimes, RunPage, SlowTask, run_page

from . import output
from .moment import moment_options, parse_moment
from .paging import no_pager_option, paged
from .runs import moment_text

SHOWN_IN_FLIGHT = 20


@click.command(name="show")
@click.argument("run", type=click.Path(path_type=Path))
@moment_options
@no_pager_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(run: Path, at_event: int | None, at_time: str | None, no_pager: bool, as_json: bool) -> int:
    """Show the state of RUN: status and life, counts, time by phase, slowest tasks, and what is in flight."""
    page = run_page(run, parse_moment(at_event, at_time))
    if as_json:
        output.print_json(page)
    else:
        with paged(no_pager):
            _print_page(page)
    return output.OK


def _print_page(page: RunPage) -> None:
    line, clean, life = click.echo, output.clean, page.life
    line(
        f"{clean(page.run_id or '(no run id)')}  {clean(page.status or 'no status')}"
        + (f" ({life.state})" if life else "")
    )
    line(" · ".join(clean(name) for name in (page.model, page.benchmark, page.harness, page.environment) if name))
    if life:
        line(f"life: {life.state}: {clean('; '.join(life.evidence))}")
    if page.error:
        line(f"error: {clean(page.error, 500)}")
    if page.closed is not None:
        line(clean(f"it had died, and was closed later: {'; '.join(page.closed.evidence)}", 500))
    line(f"tasks: {page.finished_tasks} of {page.total_tasks} finished{_count_words(page)}")
    line(
        f"attempts: {page.attempts_finished} of {page.attempts_started} finished, {page.retries} retries, "
        f"{page.partials_saved} results saved"
    )
    if page.events:
        took = "clock stepped" if page.clock_stepped else output.duration(page.duration_seconds)
        line(f"{page.events} events in {took}, the last at {moment_text(page.last_event_at)} UTC")
    if page.slots.used:
        line(f"slots used: {page.slots.used}" + (f" of {page.slots.of}" if page.slots.of is not None else ""))
    if page.eta is not None:
        line(f"left: {eta_words(page.eta)}")
    _print_phases(page.phases)
    _print_slowest(page.slowest)
    print_in_flight(page.in_flight, ended=page.ended)
    for name, count in page.verdicts.items():
        if name != "unsealed":
            output.say(f"stream: {count} {name}; compass-es verify names the places")
    if page.problem:
        output.say(clean(page.problem, 500))


def eta_words(finishes: Any) -> str:
    """Return the expected end as a middle and an honest range."""
    low, high = output.duration(finishes.low_seconds), output.duration(finishes.high_seconds)
    return f"about {output.duration(finishes.remaining_seconds)} ({low} to {high})"


def _count_words(page: RunPage) -> str:
    words = ("running", "pending", "reused", "failed", "error", "warning", "skipped")
    return "".join(f", {count} {word}" for word in words if (count := getattr(page, f"{word}_tasks")))


def _print_phases(phases: list[PhaseTimes]) -> None:
    if phases:
        click.echo("\ntime by phase")
        rows = [
            (
                row.phase,
                row.stays,
                row.running or "",
                output.duration(row.total_seconds),
                output.duration(row.median_seconds),
                output.duration(row.longest_seconds),
            )
            for row in phases
        ]
        output.print_table(("phase", "stays", "now", "total", "median", "longest"), rows, right=_NUMBERS)


_NUMBERS = ("stays", "now", "total", "median", "longest", "seconds", "retries", "attempt", "in phase", "siblings")


def _print_slowest(tasks: list[SlowTask]) -> None:
    if tasks:
        click.echo("\nslowest tasks")
        rows = [
            (output.clean(task.task_id, 60), output.duration(task.duration_seconds), task.status, task.retries or "")
            for task in tasks
        ]
        output.print_table(("task", "seconds", "status", "retries"), rows, right=_NUMBERS)


def print_in_flight(flights: list[Flight], *, ended: bool) -> None:
    """Print the attempts in flight, those of a run that has ended as what they were at its end."""
    if not flights:
        return
    click.echo(f"\nin flight{' at the end' * ended}: {len(flights)}")
    rows = [
        (
            output.clean(flight.task_id, 60),
            output.clean(flight.phase, 40),
            flight.attempt,
            output.duration(flight.duration_seconds),
            output.duration(flight.phase_seconds),
            output.duration(flight.siblings_seconds),
        )
        for flight in flights[:SHOWN_IN_FLIGHT]
    ]
    output.print_table(("task", "phase", "attempt", "seconds", "in phase", "siblings"), rows, right=_NUMBERS)
    if len(flights) > SHOWN_IN_FLIGHT:
        click.echo(f"… and {len(flights) - SHOWN_IN_FLIGHT} more (--json has all)")
