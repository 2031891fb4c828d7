"""From what a person asks for to a reuse plan: what the source or the target says fills in what was left open.

plan, notes = plan_changed("results/…/r_1", Changes(k=4))
"""

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from eventstore.errors import UsageError
from eventstore.format.events import Json
from eventstore.run.directory import is_run_dir
from eventstore.run.request_record import read_request, section
from projections.reuse import Wanted

from .plan import ReusePlan, choose_source, plan_reuse, require_source, wanted_of


class Changes(Struct, frozen=True, kw_only=True):
    """What the new run asks for otherwise than its source; None leaves a member as the source, or the target, has it.

    The members mean what those of `Wanted` mean.
    """

    k: int | None = None
    strategy: str | None = None
    benchmark_id: str | None = None
    max_retries: int | None = None
    retry_patterns: Sequence[str] | None = None
    checkpoint_resume: bool | None = None


def plan_changed(
    source: str | os.PathLike[str], changes: Changes, target: Path | None = None
) -> tuple[ReusePlan, list[str]]:
    """Return the plan for `source`, a run or a folder above runs, with notes on what was passed over.

    Where `target` is a run already, its own request counts for what `changes` leaves open. Raises InputError where no
    source is found, and UsageError where a folder is given and `changes` doesn't say what is wanted of its runs.
    """
    source = Path(source)
    asked = {name: value for name, value in structs.asdict(changes).items() if value is not None}
    if target is not None and is_run_dir(target):
        asked = _asked_by(target) | asked
    if not source.exists() or is_run_dir(source):
        return plan_reuse(source, wanted_of(read_request(source), **asked)), []
    if "benchmark_id" not in asked or "k" not in asked:
        raise UsageError("with a folder of runs as SOURCE, --benchmark and --attempts must say what is wanted", source)
    wanted = Wanted(**({"strategy": "avg"} | asked))
    choice = choose_source(source, wanted, exclude=target)
    return plan_reuse(require_source(choice, source), wanted), choice.notes


def _asked_by(target: Path) -> Json:
    """Return what an existing target's own request asks for."""
    stored = read_request(target)
    execution, runtime = section(stored.request, "execution"), section(stored.request, "runtime")
    like = wanted_of(stored)
    return {
        "k": like.k,
        "strategy": like.strategy,
        "benchmark_id": like.benchmark_id,
        "max_retries": execution.get("max_retries", 0),
        "retry_patterns": execution.get("retry_pattern_list") or (),
        "checkpoint_resume": runtime.get("checkpoint_resume") is not False,
    }
