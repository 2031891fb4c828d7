"""`compass-es show RUN`: the status page of one run."""

from pathlib import Path
from typing import Any

import click

from eventstore.operations.status import run_page

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


def _print_page(page: dict[str, Any]) -> None:
    line, clean = click.echo, output.clean
    life = page["life"]
    line(f"{clean(page['run_id'])}  {clean(page['status'])}" + (f" ({life.name})" if life else ""))
    line(" · ".join(clean(page[name]) for name in ("model", "benchmark", "harness", "environment") if page[name]))
    if life:
        line(f"life: {life.name}: {clean('; '.join(life.evidence))}")
    if page["error"]:
        line(f"error: {clean(page['error'], 500)}")
    line(f"tasks: {page['finished_tasks']} of {page['total_tasks']} finished{_count_words(page)}")
    line(
        f"attempts: {page['attempts_finished']} of {page['attempts_started']} finished, {page['retries']} retries, "
        f"{page['partials_saved']} results saved"
    )
    if page["events"]:
        elapsed = output.duration(page["elapsed_seconds"])
        line(f"{page['events']} events in {elapsed}, the last at {moment_text(page['updated_at'])} UTC")
    slots = page["slots"]
    if slots["used"]:
        line(f"slots used: {slots['used']}" + (f" of {slots['of']}" if slots["of"] is not None else ""))
    if page["eta"] is not None:
        line(f"left: {eta_words(page['eta'])}")
    _print_phases(page["phases"])
    _print_tasks("slowest tasks", page["slowest"])
    _print_in_flight(page["in_flight"])
    for name, count in page["verdicts"].items():
        if name != "unsealed":
            output.say(f"stream: {count} {name}; compass-es verify tells where")


def eta_words(finishes: Any) -> str:
    """The expected end as a middle and an honest range."""
    low, high = output.duration(finishes.low_seconds), output.duration(finishes.high_seconds)
    return f"about {output.duration(finishes.seconds)} ({low} to {high})"


def _count_words(page: dict[str, Any]) -> str:
    words = ("running", "pending", "reused", "failed", "error", "warning", "skipped")
    return "".join(f", {page[f'{word}_tasks']} {word}" for word in words if page[f"{word}_tasks"])


def _print_phases(phases: list[dict[str, Any]]) -> None:
    if phases:
        click.echo("\ntime by phase")
        rows = [
            (p["phase"], p["stays"], p["running"] or "", *(output.duration(p[f"{name}_seconds"]) for name in _TIMES))
            for p in phases
        ]
        output.print_table(("phase", "stays", "now", "total", "median", "longest"), rows, right=_NUMBERS)


_TIMES = ("total", "median", "longest")
_NUMBERS = ("stays", "now", "total", "median", "longest", "seconds", "retries", "attempt", "in phase", "siblings")


def _print_tasks(title: str, tasks: list[dict[str, Any]]) -> None:
    if tasks:
        click.echo(f"\n{title}")
        rows = [
            (output.clean(t["task_id"], 60), output.duration(t["seconds"]), t["status"], t["retries"] or "")
            for t in tasks
        ]
        output.print_table(("task", "seconds", "status", "retries"), rows, right=_NUMBERS)


def _print_in_flight(tasks: list[dict[str, Any]]) -> None:
    if not tasks:
        return
    click.echo(f"\nin flight: {len(tasks)}")
    rows = [
        (
            output.clean(t["task_id"], 60),
            t["phase"],
            t["attempt"],
            output.duration(t["seconds"]),
            output.duration(t["phase_seconds"]),
            output.duration(t["siblings_seconds"]),
        )
        for t in tasks[:SHOWN_IN_FLIGHT]
    ]
    output.print_table(("task", "phase", "attempt", "seconds", "in phase", "siblings"), rows, right=_NUMBERS)
    if len(tasks) > SHOWN_IN_FLIGHT:
        click.echo(f"… and {len(tasks) - SHOWN_IN_FLIGHT} more (--json has all)")
