"""`replay`: one stream and its stored files to both snapshots, pure.

Says as well what a careful person would want to know before the files are written: whether the stored snapshot knows
more than the stream, and whether the stream describes an evaluation at all.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.format.records import Block, Recorded
from projections.fold import Base, BlockStream, block_of, blocks_of

from . import progress, run_info

ELAPSED_TOLERANCE_SECONDS = 0.001
"""The tracker's start is known to a millisecond, so `elapsed_seconds` may differ by one from what is stored."""

_GROWING = ("finished_tasks", "attempts_started", "attempts_finished", "partials_saved")
_TERMINAL = ("completed", "failed", "cancelled", "timed_out")


class State(Struct):
    """Both folds, side by side."""

    progress: progress.State
    run_info: run_info.State


class Snapshots(Struct, frozen=True):
    """What the stream says. `progress` is None without records, `run_info` None where nothing is known of the run."""

    run_id: str | None
    events: int
    progress: Json | None
    run_info: Json | None
    analysis_only: bool
    rendered_progress: bytes
    rendered_run_info: bytes


def initial(base: Base) -> State:
    """Return both states with the stored files as their base."""
    return State(progress=progress.initial(base), run_info=run_info.initial(base))


def apply(state: State, record: Recorded, /) -> State:
    """Fold one record into both."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /) -> State:
    """Fold a batch of records into both."""
    progress.apply_block(state.progress, block)
    run_info.apply_block(state.run_info, block)
    return state


def render(state: State, /) -> bytes:
    """progress.json; `snapshots` gives both files."""
    return progress.render(state.progress)


def replay(stream: Iterable[Recorded] | BlockStream, base: Base | None = None) -> Snapshots:
    """Fold a whole stream, with parsed stored files as its base, into the contents of both snapshot files."""
    state = initial(base or Base())
    for block in blocks_of(stream):
        apply_block(state, block)
    return snapshots(state)


def snapshots(state: State) -> Snapshots:
    """Render both states."""
    events = state.progress.counts.events
    info = run_info.record(state.run_info)
    progress_members = progress.snapshot(state.progress) if events else None
    return Snapshots(
        run_id=state.progress.run_id,
        events=events,
        progress=progress_members,
        run_info=info,
        analysis_only=run_info.is_analysis_only(state.run_info),
        rendered_progress=b"" if progress_members is None else codec.dump_pretty(progress_members, sort_keys=False),
        rendered_run_info=b"" if info is None else codec.dump_pretty(info, sort_keys=True),
    )


def same_progress(stored: Any, folded: Json) -> bool:
    """Return whether a stored progress.json says what the fold says, `elapsed_seconds` to the millisecond."""
    if not isinstance(stored, dict) or list(stored) != list(folded):
        return False
    elapsed = stored["elapsed_seconds"]
    if not isinstance(elapsed, int | float) or not same_elapsed(elapsed, folded["elapsed_seconds"]):
        return False
    return bool({**stored, "elapsed_seconds": 0} == {**folded, "elapsed_seconds": 0})


def same_elapsed(one: float, other: float) -> bool:
    """Return whether two `elapsed_seconds` are the same to a millisecond; they may be any number that JSON holds."""
    try:
        return bool(abs(one - other) < 1.5 * ELAPSED_TOLERANCE_SECONDS)
    except OverflowError:
        return one == other


def known_without_stream(progress_members: Json | None, info: Json | None, *, results: bool) -> str | None:
    """Return what stored files know of a run whose stream has no event, in words; None for one that never had any.

    A run that failed before its first event has a status and nothing else. `results`: task results are there.
    """
    stored = progress_members or {}
    for name in (*_GROWING, "reused_tasks"):
        count = stored.get(name)
        if isinstance(count, int) and count > 0:
            return f"progress.json has {name} {count}"
    for name, members in (("run_info.json", info), ("progress.json", stored)):
        if (members or {}).get("status") == "completed":
            return f"{name} says completed"
    return "details has task results" if results else None


def ahead_of_stream(stored: Any, folded: Json | None) -> str | None:
    """Return why a stored progress.json must come from events that the stream has lost, or None.

    AgentCompass syncs its snapshot and never its stream, so after a power loss the snapshot can be the one that knows
    more. Only growing counters and the end of the run prove it: clocks step.
    """
    if not isinstance(stored, dict):
        return None
    for name in _GROWING:
        was, now = stored.get(name), (folded or {}).get(name, 0)
        if isinstance(was, int) and was > now:
            return f"{name} is {was} in progress.json, the stream has {now}"
    status = (folded or {}).get("status")
    if stored.get("status") in _TERMINAL and status not in _TERMINAL:
        return f"progress.json says {stored['status']}, the stream has no terminal event"
    return None
