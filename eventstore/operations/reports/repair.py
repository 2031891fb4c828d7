"""What `repair --json` prints."""

from typing import Literal

from msgspec import Struct

from eventstore.operations.repair.repair import EventCounts, Repaired
from projections.repair_plan import Step


class RepairReport(Struct, frozen=True, kw_only=True):
    """A plan, and what was done of it.

    `backup` and `set_aside` name files of the run directory with the damaged stream and with what was taken out of it.
    `promised` lists acknowledged events that are gone; `needs_accept_loss` tells that there are any. `results` are
    steps among task results. `written` names snapshots that were rebuilt, `problems` says what could not be finished.
    """

    schema: Literal["compass-es.repair.v1"] = "compass-es.repair.v1"
    run_id: str | None
    plan: list[Step]
    applied: bool
    backup: str | None
    set_aside: str | None
    event_counts: EventCounts
    promised: list[str]
    needs_accept_loss: bool
    verdicts: dict[str, int]
    results: list[str]
    results_done: bool
    written: list[str]
    problems: list[str]


def repair_report(repaired: Repaired) -> RepairReport:
    """Return the document of a repair."""
    return RepairReport(
        run_id=repaired.run_id,
        plan=repaired.steps,
        applied=repaired.applied,
        backup=repaired.backup,
        set_aside=repaired.set_aside,
        event_counts=repaired.events,
        promised=repaired.promised,
        needs_accept_loss=bool(repaired.promised),
        verdicts=repaired.verdicts,
        results=repaired.results,
        results_done=repaired.results_done,
        written=repaired.snapshots,
        problems=repaired.problems,
    )
