"""Folding a stream in two parts at once: the state of a later part, and joining it to the state before it.

Most events add to counters and replace entries, so a part can be folded without knowing what came before. An event
that *sets* counters from others (`run_finished`, say) can't: a part ends before it. Counters that never go below zero
begin a part far above it; how low they came tells at the join whether zero would have mattered.
"""

from msgspec import Struct

from eventstore.format.events import Json
from eventstore.format.records import Block
from projections.fold import Base, place_events

from . import counts, plans, replay, run_info

SETTING = frozenset({"run_started", "tasks_loaded", "reuse_loaded", "summary_started", "run_finished"})
"""Events whose effect depends on what came before the part."""
EVENTS = place_events(
    takes=SETTING,
    passes_over={
        "task_started",
        "phase_changed",
        "attempt_started",
        "execution_plan_resolved",
        "attempt_retry",
        "attempt_finished",
        "partial_saved",
        "task_finished",
        "metric_artifacts_written",
        "stream_repaired",
        "stream_scrubbed",
        "records_lost",
    },
)

_FAR = 10**15
_ADDED = tuple(name for name in counts.COUNTERS if name not in ("total_tasks", "reused_tasks"))


class Part(Struct):
    """What a later range of a stream does to the state before it."""

    counts: counts.State
    plans: dict[str, dict[str, bytes]]
    recounted: bool
    artifacts: Json | None = None


def initial() -> replay.State:
    """Return a state to fold a part into, with `snapshots.apply_block`."""
    state = replay.initial(Base())
    tally = state.progress.counts
    tally.pending_tasks = tally.running_tasks = tally.lowest_pending = tally.lowest_running = _FAR
    state.progress.ids_from_stream = True
    state.run_info.evaluates = True
    return state


def can_fold(block: Block) -> bool:
    """Return whether a batch may belong to a part: it neither sets counters nor begins a session."""
    return not block.sessions and not any(head.event in SETTING for head in block.heads)


def recounts(block: Block) -> bool:
    """Whether the phase counts are recomputed in a batch: without that, a part can't tell what is fresh at its end."""
    return any(head.event in ("phase_changed", "task_finished") for head in block.heads)


def part_of(state: replay.State, recounted: bool) -> Part:
    """Return the part that was folded into a state made by `initial`."""
    return Part(state.progress.counts, state.run_info.plans.plans, recounted, state.run_info.metric_artifacts)


def joins(state: replay.State, part: Part) -> bool:
    """Return whether `join` gives exactly what folding the part after `state` would have given."""
    before, after = state.progress.counts, part.counts
    return (
        part.recounted
        and before.writers.settled
        and not before.returned
        and state.run_info.evaluates
        and state.progress.ids_from_stream
        and before.pending_tasks + after.lowest_pending - _FAR >= 0
        and before.running_tasks + after.lowest_running - _FAR >= 0
    )


def join(state: replay.State, part: Part) -> None:
    """Fold a whole part into the state before it."""
    before, after = state.progress.counts, part.counts
    for name in _ADDED:
        far = _FAR if name in ("pending_tasks", "running_tasks") else 0
        setattr(before, name, getattr(before, name) + getattr(after, name) - far)
    before.fresh = {
        task_id: before.active.get(task_id) if line is None and task_id not in after.gone else line
        for task_id, line in after.fresh.items()
    }
    for task_id in after.gone:
        before.active.pop(task_id, None)
    before.active.update(after.active)
    before.gone |= after.gone
    before.events += after.events
    if after.last_timestamp is not None:
        before.last_timestamp = after.last_timestamp
    if after.last_observed_at is not None:
        before.last_observed_at = after.last_observed_at
        if before.first_observed_at is None:
            before.first_observed_at = after.first_observed_at
    _join_plans(state.run_info.plans, part.plans)
    if part.artifacts is not None:
        known = state.run_info.metric_artifacts
        state.run_info.metric_artifacts = run_info.newest_artifacts(known, part.artifacts)


def _join_plans(before: plans.State, later: dict[str, dict[str, bytes]]) -> None:
    for task_id, attempts in later.items():
        own = before.plans.setdefault(task_id, {})
        for attempt, payload in attempts.items():
            own[attempt] = plans.intern_payload(before, payload)
