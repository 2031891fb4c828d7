"""`compass-es watch PATH`: a board of one run or many, live."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from eventstore.errors import InputError
from eventstore.operations.watch import Watch, WatchPage

from . import output
from .runs import moment_text
from .show import eta_words

SHOWN_RUNS, SHOWN_PHASES = 20, 8
RUN_KEY_SHOWN = 28


@click.command(name="watch")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Show the board once and leave.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    metavar="SECONDS",
    show_default=True,
    help="Draw at most so often.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON lines: one a run, each time that it changed.")
def command(path: Path, once: bool, interval: float, as_json: bool) -> int:
    """Watch the run at PATH, or all runs below it: progress, phases, slots, idle tasks, recent problems.

    Runs of one orchestration stand together. It ends by itself when PATH is a run that is over; Ctrl-C ends it
    otherwise. Without a terminal it prints a line a run when something changed. Rates and the expected end come from
    the run's own recent pace.
    """
    watch = Watch(path, lambda place, words: output.say(f"{output.clean(place)}: {output.clean(words)}"))
    try:
        watch.look()
        if not watch.runs:
            words = f"{path}: there is no run directory at or below it"
            if once:
                raise InputError(words, path)
            output.say(f"{output.clean(words)} yet")
        if once or as_json or not sys.stdout.isatty():
            _print_lines(watch, once, interval, as_json, single=watch.single)
        else:
            _draw(watch, interval, single=watch.single)
    finally:
        watch.close()
    return output.OK


def _print_lines(watch: Watch, once: bool, interval: float, as_json: bool, *, single: bool) -> None:
    """JSON lines, boards (once), or a line for each run that changed."""
    said: dict[str, tuple[Any, ...]] = {}
    while True:
        for page in watch.pages():
            state = (page.events, page.status, page.life and page.life.state)
            if said.get(page.run_key) != state:
                said[page.run_key] = state
                _print_page(page, once, as_json)
        if once or (single and watch.over):
            return
        _wait(watch, interval)
        watch.look()


def _print_page(page: WatchPage, once: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(output.plain(page)))
    elif once:
        output.console().print(output.stack(_board(page)))
    else:
        click.echo(_line(page))


def _draw(watch: Watch, interval: float, *, single: bool) -> None:
    with output.live_page() as page:
        while True:
            page.update(output.stack(_boards(list(watch.pages()))), refresh=True)
            if single and watch.over:
                return
            _wait(watch, interval)
            watch.look()


def _wait(watch: Watch, interval: float) -> None:
    """Until something changes; a busy stream wakes at once and always, so half the interval passes whatever comes."""
    time.sleep(interval / 2)
    watch.wait(interval / 2)


def _boards(pages: list[WatchPage]) -> Iterator[Any]:
    if len(pages) == 1:
        yield from _board(pages[0])
        return
    rows = list(_rows(pages))
    used = [at for at in range(len(_COLUMNS)) if any(row[at] != "" for row in rows) or at == 0]
    columns = [_COLUMNS[at] for at in used]
    shown = [[row[at] for at in used] for row in rows[:SHOWN_RUNS]]
    yield output.build_table(columns, shown, right=("tasks", "failed", "errors", "retries"))
    if len(rows) > SHOWN_RUNS:
        yield f"… and {len(rows) - SHOWN_RUNS} more"


def _rows(pages: list[WatchPage]) -> Iterator[list[Any]]:
    """Yield a row a run, those that live first; runs of one orchestration stand together, below a row of their sums."""
    groups: dict[Any, list[WatchPage]] = {}
    for page in pages:
        together = page.origin.orchestration_id if page.origin is not None else None
        named = isinstance(together, str) and together != ""
        groups.setdefault(("orchestration", together) if named else ("run", page.run_key), []).append(page)
    for (kind, name), members in sorted(groups.items(), key=lambda group: not any(map(_lives, group[1]))):
        if kind == "run" or len(members) == 1:
            yield from map(_cells, members)
            continue
        yield _sums(name, members)
        for page in sorted(members, key=lambda page: not _lives(page)):
            request = page.origin.request_name if page.origin is not None else None
            key = _tail(page.run_key, 16)
            yield [f"  {_tail(str(request), 12)}: {key}" if request else f"  {key}", *_cells(page)[1:]]


def _lives(page: WatchPage) -> bool:
    return page.life is not None and page.life.writing


def _sums(orchestration_id: str, members: list[WatchPage]) -> list[Any]:
    total = {name: sum(getattr(page, name) for page in members) for name in _SUMMED}
    living = sum(map(_lives, members))
    return [
        f"orchestration {_tail(orchestration_id, 12)}",
        f"{len(members)} runs" + f", {living} live" * (living > 0),
        f"{total['finished_tasks']}/{total['total_tasks']}",
        total["failed_tasks"] or "",
        total["error_tasks"] or "",
        total["retries"] or "",
        sum(page.slots.used for page in members),
        "",
        moment_text(max((page.last_event_at or "" for page in members), default=""))[11:],
    ]


_SUMMED = ("finished_tasks", "total_tasks", "failed_tasks", "error_tasks", "retries")
_COLUMNS = ("run", "is", "tasks", "failed", "errors", "retries", "slots", "left", "last")


def _cells(page: WatchPage) -> list[Any]:
    life = page.life
    state = page.status if life is None or life.state == "finished" else life.state
    return [
        _tail(page.run_key),
        state,
        f"{page.finished_tasks}/{page.total_tasks}",
        page.failed_tasks or "",
        page.error_tasks or "",
        page.retries or "",
        _slots(page),
        _eta(page.eta),
        moment_text(page.last_event_at)[11:],
    ]


def _tail(name: str, shown: int = RUN_KEY_SHOWN) -> str:
    """Return the end of a path or an id, where runs differ."""
    return name if len(name) <= shown else f"…{name[1 - shown :]}"


def _line(page: WatchPage) -> str:
    life = page.life
    words = [
        output.clean(page.run_key),
        output.clean(page.status),
        life.state if life else "",
        f"{page.finished_tasks}/{page.total_tasks} tasks",
        f"{page.retries} retries",
        f"{page.failed_tasks} failed",
        f"slots {_slots(page)}",
        _eta(page.eta),
    ]
    return "  ".join(word for word in words if word)


def _slots(page: WatchPage) -> str:
    slots = page.slots
    return f"{slots.used}/{slots.of}" if slots.of is not None else str(slots.used)


def _eta(finishes: Any) -> str:
    return "" if finishes is None else eta_words(finishes)


def _board(page: WatchPage) -> Iterator[Any]:
    """Yield one run's board: lines and tables."""
    clean, life = output.clean, page.life
    yield f"{clean(page.run_id or page.run_key)}  {clean(page.status or 'no status')}" + (
        f" ({life.state})" if life else ""
    )
    if life and life.state not in ("finished", "live"):
        yield f"life: {clean('; '.join(life.evidence), 300)}"
    if page.problem:
        yield f"problem: {clean(page.problem, 300)}"
    if page.error:
        yield f"error: {clean(page.error, 300)}"
    names = ("running", "pending", "failed", "error", "warning")
    rest = "".join(f", {getattr(page, f'{name}_tasks')} {name}" for name in names if getattr(page, f"{name}_tasks"))
    yield f"tasks: {page.finished_tasks} of {page.total_tasks} finished{rest}"
    left = _eta(page.eta)
    inside = f"slots used: {_slots(page)} ({len(page.in_flight)} attempts)"
    yield f"{inside} · retries: {page.retries}" + (f" · left: {left}" if left else "")
    phases = page.phases[:SHOWN_PHASES]
    if phases:
        rows = [
            (
                clean(p.phase, 40),
                p.running or "",
                p.stays,
                output.duration(p.median_seconds),
                output.duration(p.longest_seconds),
            )
            for p in phases
        ]
        yield output.build_table(("phase", "now", "stays", "median", "longest"), rows, right=_NUMBERS)
    if page.idle:
        idle = [
            (
                clean(t.task_id, 40),
                clean(t.phase, 40),
                t.attempt,
                output.duration(t.phase_seconds),
                output.duration(t.siblings_seconds),
            )
            for t in page.idle
        ]
        yield output.build_table(("longest in phase", "phase", "attempt", "for", "siblings"), idle, right=_NUMBERS)
    for problem in page.problems:
        yield f"{moment_text(problem.at)} {clean(problem.task_id or '', 60)} {clean(problem.text, 200)}"


_NUMBERS = ("now", "stays", "median", "longest", "attempt", "for", "siblings")
