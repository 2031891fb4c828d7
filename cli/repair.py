"""`compass-es repair RUN`: the plan to make a damaged stream openable, and with --apply the plan carried out."""

from pathlib import Path

import click

from eventstore.operations.repair.repair import Repaired, repair_run
from eventstore.operations.reports.repair import repair_report

from . import output

SHOWN_STEPS = 40


@click.command(name="repair")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--apply", "apply", is_flag=True, help="Carry the plan out, after a backup.")
@click.option("--accept-loss", is_flag=True, help="Go on although events are gone that were on stable storage.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(run: Path, apply: bool, accept_loss: bool, as_json: bool) -> int:
    """Show what would make the damaged stream of RUN whole again; --apply does it.

    Whole records are kept, damage is set aside, and the damaged stream stays as progress.jsonl.unrepaired-1. Task
    results that a crash left half published are finished or undone. Nothing is touched while the writer lives. Exit
    code 1: there is a plan, and it was not carried out.
    """
    repaired = repair_run(run, apply=apply, accept_loss=accept_loss)
    if as_json:
        output.print_json(repair_report(repaired))
    else:
        _tell(repaired)
    return output.FOUND if _is_open(repaired) or repaired.problems else output.OK


def _is_open(repaired: Repaired) -> bool:
    """Return whether something of the plan was not carried out."""
    return bool((repaired.steps and not repaired.applied) or (repaired.results and not repaired.results_done))


def _tell(repaired: Repaired) -> None:
    say, clean = output.say, output.clean
    name = clean(repaired.run_dir)
    if not repaired.steps and not repaired.results:
        torn = ": its torn tail is set aside by the next writer" if repaired.verdicts.get("torn_tail") else ""
        say(f"{name}: nothing to repair{torn}")
    else:
        say(f"{name}: {'the plan' if _is_open(repaired) else 'repaired'}")
        _tell_plan(repaired)
    if repaired.backup:
        say(f"  the damaged stream is kept as {repaired.backup}")
    if repaired.set_aside:
        say(f"  what was taken out is in {repaired.set_aside}")
    if repaired.snapshots:
        say(f"  rebuilt: {', '.join(repaired.snapshots)}")
    for problem in repaired.problems:
        say(f"  not done: {clean(problem)}")
    if _is_open(repaired) and not (repaired.applied or repaired.problems):
        loss = " --accept-loss" if repaired.promised else ""
        say(f"  nothing was changed; compass-es repair --apply{loss} carries the plan out")


def _tell_plan(repaired: Repaired) -> None:
    for step in repaired.steps[:SHOWN_STEPS]:
        where = "" if step.offset is None else f"byte {step.offset}"
        where += "" if step.line is None else f", line {step.line}"
        where += "" if step.seq is None else f", seq {step.seq}"
        output.say(f"  {step.code} at {where.removeprefix(', ') or 'the end'}: {output.clean(step.message)}")
    if len(repaired.steps) > SHOWN_STEPS:
        output.say(f"  … and {len(repaired.steps) - SHOWN_STEPS} more (--json has all)")
    for words in repaired.results[:SHOWN_STEPS]:
        output.say(f"  task results: {output.clean(words)}")
    if len(repaired.results) > SHOWN_STEPS:
        output.say(f"  … and {len(repaired.results) - SHOWN_STEPS} more task results (--json has all)")
    if not repaired.steps:
        return
    events = repaired.events
    output.say(f"  events: {events.certain} certain, {events.inferred} without proof, {events.lost} lost")
    for words in repaired.promised[:SHOWN_STEPS]:
        output.say(f"  promised and gone: {output.clean(words)}")
