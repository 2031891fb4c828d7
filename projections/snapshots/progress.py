"""`progress.json`: identity, counts and clock, byte for byte as AgentCompass 1.0.1 writes it.

Key order and layout are those of the specification's "progress.json" and of the files seen. `elapsed_seconds` counts
from the tracker's start, which the stream doesn't hold: a stored snapshot gives it back (`updated_at -
elapsed_seconds`, exact to a millisecond), else the first event stands in for it (0 to 10 ms later).
"""

import math

from msgspec import Struct

from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.format.records import Block, Recorded
from eventstore.format.values import as_object, as_text
from projections.fold import Base, block_of, place_events

from . import counts

IDENTITY = ("benchmark", "harness", "environment", "model")


class State(Struct):
    """`ids` are the component ids of `run_started`, else those of stored files; `started_at` is Unix time or None."""

    counts: counts.State
    run_id: str | None = None
    ids: Json = {}
    ids_from_stream: bool = False
    started_at: float | None = None


def initial(base: Base) -> State:
    """Return an empty state with what stored files add: the tracker's start and the component ids."""
    stored = base.progress or {}
    return State(
        counts=counts.initial(base),
        run_id=as_text(stored.get("run_id")) or as_text((base.run_info or {}).get("run_id")),
        ids=_stored_ids(stored, base.run_info or {}),
        started_at=_tracker_start(stored),
    )


def apply(state: State, record: Recorded, /) -> State:
    """Fold one record."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /) -> State:
    """Fold a batch of records."""
    if not state.ids_from_stream:
        _look_for_ids(state, block)
    if state.counts.events == 0:
        state.run_id = block.heads[0].run_id
    counts.apply_block(state.counts, block)
    return state


EVENTS = place_events(
    takes={
        "run_started",
    },
    passes_over={
        "tasks_loaded",
        "reuse_loaded",
        "task_started",
        "phase_changed",
        "attempt_started",
        "execution_plan_resolved",
        "attempt_retry",
        "attempt_finished",
        "partial_saved",
        "task_finished",
        "summary_started",
        "run_finished",
        "metric_artifacts_written",
        "stream_repaired",
        "stream_scrubbed",
        "records_lost",
    },
)
"""What this fold adds to that of the counts."""


def snapshot(state: State) -> Json:
    """Return the object that progress.json holds."""
    last = state.counts.last_timestamp
    start = state.started_at if state.started_at is not None else state.counts.first_timestamp
    identity = {name: state.ids.get(name) for name in IDENTITY}
    return {
        "run_id": state.run_id,
        **identity,
        **counts.snapshot(state.counts),
        "elapsed_seconds": _elapsed(start, last),
        "updated_at": start if last is None else last,
    }


def _elapsed(start: float | None, last: float | None) -> float:
    if last is None or start is None:
        return 0.0
    try:
        return round(last - start, 3)
    except OverflowError:  # an integer beyond every float
        return math.inf if last > start else -math.inf


def render(state: State, /) -> bytes:
    """progress.json as bytes."""
    return codec.dump_pretty(snapshot(state), sort_keys=False)


def _look_for_ids(state: State, block: Block) -> None:
    for head, line in zip(block.heads, block.lines, strict=True):
        if head.event == "run_started":
            payload = codec.payload_members(codec.decode_accepted(line, head))
            state.ids = {name: payload.get(name) for name in IDENTITY}
            state.ids_from_stream = True
            return


def _stored_ids(progress: Json, run_info: Json) -> Json:
    request = as_object(run_info.get("request"))
    return {name: progress.get(name) or as_object(request.get(name)).get("id") for name in IDENTITY}


def _tracker_start(progress: Json) -> float | None:
    updated_at, elapsed_seconds = progress.get("updated_at"), progress.get("elapsed_seconds")
    if not isinstance(updated_at, int | float) or not isinstance(elapsed_seconds, int | float):
        return None
    try:
        start = updated_at - elapsed_seconds
        return start if math.isfinite(start) else None
    except OverflowError:  # an integer beyond every float
        return None
