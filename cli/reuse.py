"""`compass-es reuse plan|apply|lineage`: what a new run would reuse and why; do it; where results came from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from eventstore.operations.reports.reuse import apply_report, lineage_report, plan_report
from eventstore.operations.reuse.apply import Applied
from eventstore.operations.reuse.ask import Changes, plan_changed
from eventstore.operations.reuse.lineage import Lineage, lineage_of
from eventstore.operations.reuse.plan import ReusePlan

from . import output

_ANY = Callable[..., Any]


@click.group(name="reuse", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Show what a new run would take over from an earlier one, and why; doing it; where results came from.

    SOURCE is a run directory, or a folder above runs: then the newest compatible run is taken, and a newer one that
    died or holds fewer finished tasks is passed over with a note.
    """


def _wanted_options(function: _ANY) -> _ANY:
    options = (
        click.option("--attempts", "k", type=click.IntRange(min=1), help="Attempts per task (default: the source's)."),
        click.option("--strategy", help="Attempt strategy, avg or pass (default: the source's)."),
        click.option("--benchmark", help="Benchmark id (default: the source's)."),
        click.option(
            "--retry-pattern",
            "patterns",
            multiple=True,
            help="Regular expression; errors it matches retry (default: the source's).",
        ),
        click.option(
            "--max-retries", type=click.IntRange(min=0), help="Retry budget (default: the source's); 0 keeps all."
        ),
        click.option("--no-checkpoint-resume", is_flag=True, help="Don't score again from checkpoints."),
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@command.command()
@click.argument("source", type=click.Path(path_type=Path))
@_wanted_options
@click.option("--all", "show_all", is_flag=True, help="List kept tasks, too.")
def plan(source: Path, as_json: bool, show_all: bool, **options: Any) -> int:
    """Say for every task and attempt of SOURCE whether it would be kept, scored again or run again, and why."""
    found, notes = plan_changed(source, _changes(options))
    if as_json:
        output.print_json(plan_report(found, notes))
    else:
        _tell_plan(found, notes, show_all)
    return output.FOUND if found.refusal is not None else output.OK


@command.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@_wanted_options
@click.option("--total-tasks", type=click.IntRange(min=0), help="Tasks of the new run (default: the source's).")
@click.option("--copy", is_flag=True, help="Copy files; without it they are shared (reflink or hard link).")
def apply(source: Path, target: Path, as_json: bool, total_tasks: int | None, copy: bool, **options: Any) -> int:
    """Bring what can be kept of SOURCE into TARGET, a new run or one that has not begun its tasks.

    TARGET stands alone afterwards. It records SOURCE as reused_from and has reuse_loaded as its last event.
    """
    from eventstore.operations.reuse.reuse_run import reuse_into

    found, notes = plan_changed(source, _changes(options), target)
    applied = reuse_into(found, target, total_tasks=total_tasks, link=not copy)
    if as_json:
        output.print_json(apply_report(found, notes, target, applied))
    else:
        _tell_applied(found, notes, target, applied)
    return output.FOUND if applied.failed else output.OK


@command.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--root", type=click.Path(path_type=Path), help="Look for sources below this folder, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def lineage(run: Path, root: Path | None, as_json: bool) -> int:
    """Show the runs that RUN reused, one after another, and where each result in it came from."""
    found = lineage_of(run, root)
    if as_json:
        output.print_json(lineage_report(found))
    else:
        _tell_lineage(found)
    return output.OK


def _changes(options: dict[str, Any]) -> Changes:
    return Changes(
        k=options["k"],
        strategy=options["strategy"].strip().lower() if options["strategy"] else None,
        benchmark_id=options["benchmark"],
        max_retries=options["max_retries"],
        retry_patterns=options["patterns"] or None,
        checkpoint_resume=False if options["no_checkpoint_resume"] else None,
    )


def _tell_notes(found: ReusePlan, notes: list[str]) -> None:
    for note in notes + found.warnings:
        output.say(output.clean(note, 500))


def _tell_plan(found: ReusePlan, notes: list[str], show_all: bool) -> None:
    _tell_notes(found, notes)
    if found.refusal is not None:
        output.say(f"{output.clean(found.source)}: nothing can be reused: {output.clean(found.refusal)}")
        return
    rows: list[tuple[str, ...]] = []
    for task in found.tasks:
        if task.action == "keep" and show_all:
            rows.append((task.task_id, task.action, "", "", task.reason))
        elif task.action != "keep":
            rows += [(task.task_id, task.action, str(one.attempt), one.action, one.reason) for one in task.attempts]
    output.print_table(("task", "task is", "attempt", "attempt is", "because"), rows, right=("attempt",))
    actions = [one.action for task in found.tasks if task.action != "keep" for one in task.attempts]
    output.say(
        f"{output.clean(found.source)}: {len(found.reused)} of {found.total_tasks} tasks kept; of the others' attempts "
        f"{actions.count('keep')} kept, {actions.count('rescore')} scored again, "
        f"{found.attempts_to_run - actions.count('rescore')} left to run"
    )
    _tell_policy(found)


def _tell_policy(found: ReusePlan) -> None:
    """Say with which retry budget and patterns was planned, and what they keep."""
    wanted = found.wanted
    patterns = ", ".join(repr(pattern) for pattern in wanted.retry_patterns) or "none"
    output.say(f"planned with a retry budget of {wanted.max_retries} and retry patterns {output.clean(patterns, 200)}")
    failed = sum(found.severity_counts.get(name, 0) for name in ("fatal", "error"))
    if failed:
        output.say(f"{failed} of the kept tasks failed; --max-retries 1 runs fatal ones again, --retry-pattern others")


def _tell_applied(found: ReusePlan, notes: list[str], target: Path, applied: Applied) -> None:
    _tell_notes(found, notes)
    for name, reason in applied.failed.items():
        output.say(f"not brought over: {output.clean(name, 200)}: {output.clean(reason, 500)}")
    resumed = sum(len(attempts) for attempts in applied.resumed.values())
    output.say(
        f"{output.clean(target)}: {len(applied.reused)} tasks reused from {output.clean(found.source)}, "
        f"{resumed} attempts of others kept or to be scored again, {applied.tasks_to_run} tasks to run"
    )


def _tell_lineage(found: Lineage) -> None:
    for generation in found.generations:
        where = generation.path if generation.path is not None else generation.problem
        output.say(f"{output.clean(generation.run_id, 200)}: {output.clean(where)}")
    rows = [
        (task.task_id, str(one.attempt), one.agent_run_id, one.scored_run_id, " < ".join(one.through))
        for task in found.tasks
        for one in task.attempts
    ]
    output.print_table(("task", "attempt", "agent ran in", "scored in", "through"), rows, right=("attempt",))
