"""Which tasks a stream has begun and not told to be saved: `task_started` without a `partial_saved` after it.

A crash can come between a task's publication and its event; `operations.repair.results` appends what was left out.
"""

from msgspec import Struct

from eventstore.format.codec import dump_compact
from eventstore.format.records import Block, Recorded
from projections.fold import Base, block_of, place_events


class State(Struct):
    """Task ids in the order in which they began; `ended` tells that the run has its terminal event."""

    unsaved: dict[str, None] = {}
    ended: bool = False


def initial(base: Base) -> State:
    """Nothing has begun; stored files say nothing of it."""
    return State()


def apply(state: State, record: Recorded, /) -> State:
    """Fold one record."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /) -> State:
    """Fold a batch of records."""
    for head in block.heads:
        if head.event == "task_started" and head.task_id is not None:
            state.unsaved[head.task_id] = None
        elif head.event == "partial_saved":
            state.unsaved.pop(head.task_id, None)
        elif head.event in ("run_finished", "run_started"):
            state.ended = head.event == "run_finished"
    return state


EVENTS = place_events(
    takes={
        "task_started",
        "partial_saved",
        "run_finished",
        "run_started",
    },
    passes_over={
        "tasks_loaded",
        "reuse_loaded",
        "phase_changed",
        "attempt_started",
        "execution_plan_resolved",
        "attempt_retry",
        "attempt_finished",
        "task_finished",
        "summary_started",
        "metric_artifacts_written",
        "stream_repaired",
        "stream_scrubbed",
        "records_lost",
    },
)


def render(state: State, /) -> bytes:
    """Return the ids as a JSON array."""
    return dump_compact(list(state.unsaved))
