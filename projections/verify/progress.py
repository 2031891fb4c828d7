"""`progress.json` against the fold of its stream, and its own arithmetic (specification, "progress.json")."""

from typing import TYPE_CHECKING, Any

from eventstore.format.events import TERMINAL_STATUSES, Json
from eventstore.format.values import short
from projections.snapshots.counts import COUNTERS
from projections.snapshots.replay import ELAPSED_TOLERANCE_SECONDS, ahead_of_stream, same_elapsed, same_progress

from . import lifecycle
from .findings import Notes

if TYPE_CHECKING:
    from .files import Facts

FILE = "progress.json"
EARLIEST_START_SECONDS = 10.0
"""A tracker begins just before its first event; one that says it began longer before is worth a word."""


def check_counts(
    notes: Notes, facts: "Facts", folded: Json | None, watched: lifecycle.State, first_timestamp: float | None
) -> None:
    """All rules of the group counts. `folded` is what the stream says, None where it has no records."""
    document = facts.progress
    if document.problem is not None:
        notes.add("progress_unreadable", document.problem, file=FILE)
    if document.missing and folded is not None:
        notes.add("progress_missing", "there is no progress.json", file=FILE)
    stored = document.members
    if stored is None:
        return
    _check_arithmetic(notes, stored)
    if folded is None:
        if not facts.stream_found or ahead_of_stream(stored, None):
            notes.add("progress_ahead", "progress.json is there, and the stream has no event", file=FILE)
        return
    _check_fields(notes, stored, folded)
    if same_progress(stored, folded):
        _check_start(notes, stored, watched, first_timestamp)
        return
    _check_drift(notes, facts, stored, folded)


def _check_fields(notes: Notes, stored: Json, folded: Json) -> None:
    missing = [name for name in folded if name not in stored]
    extra = [name for name in stored if name not in folded]
    if missing:
        notes.add("progress_fields", f"fields missing: {', '.join(missing)}", file=FILE)
    if extra:
        notes.add("progress_fields", f"fields beyond the specification: {short(', '.join(extra))}", file=FILE)


def _check_drift(notes: Notes, facts: "Facts", stored: Json, folded: Json) -> None:
    ahead = ahead_of_stream(stored, folded)
    updated_at = stored.get("updated_at")
    if ahead is None and isinstance(updated_at, int | float) and updated_at != folded["updated_at"]:
        earlier = facts.state_at(updated_at)
        if earlier is not None and same_progress(stored, earlier[1]):
            if not facts.live:
                notes.add("progress_behind", f"is the state after the first {earlier[0]} events", file=FILE)
            return
    if ahead is not None:
        notes.add("progress_ahead", ahead, file=FILE)
    for name, said in folded.items():
        if name in stored and not _same(name, stored[name], said):
            notes.add("progress_drift", f"{name} is {short(stored[name])}, the stream says {short(said)}", file=FILE)


def _same(name: str, stored: Any, said: Any) -> bool:
    if isinstance(stored, bool) != isinstance(said, bool):
        return False
    if name == "elapsed_seconds" and isinstance(stored, int | float):
        return same_elapsed(stored, said)
    return bool(stored == said)


def _check_start(notes: Notes, stored: Json, watched: lifecycle.State, first_timestamp: float | None) -> None:
    """The stream doesn't hold the tracker's start, so `elapsed_seconds` is judged by the start that it gives."""
    if first_timestamp is None or watched.starts != 1 or not lifecycle.is_moment(first_timestamp):
        return
    early = first_timestamp - (stored["updated_at"] - stored["elapsed_seconds"])
    if not -2 * ELAPSED_TOLERANCE_SECONDS <= early <= EARLIEST_START_SECONDS:
        words = f"elapsed_seconds is {stored['elapsed_seconds']!r}: counted from {early:.3f} s before the first event"
        notes.add("elapsed_implausible", words, file=FILE)


def _check_arithmetic(notes: Notes, stored: Json) -> None:
    odd = [name for name in COUNTERS if name in stored and not lifecycle.is_count(stored[name])]
    for name in odd:
        notes.add("counts_arithmetic", f"{name} is {short(stored[name])}, which is no count", file=FILE)
    if odd or any(name not in stored for name in COUNTERS):
        return
    for words, holds in _equations({name: stored[name] for name in COUNTERS}, stored.get("status"), stored):
        if not holds:
            notes.add("counts_arithmetic", words, file=FILE)


def _equations(n: dict[str, int], status: Any, stored: Json) -> list[tuple[str, bool]]:
    """Return what must hold of the counts at any moment, each with the words for when it does not."""
    outcomes = n["completed_tasks"] + n["failed_tasks"] + n["skipped_tasks"]
    parts = n["pending_tasks"] + n["running_tasks"] + n["finished_tasks"]
    active, phases = stored.get("active_tasks"), stored.get("current_phase_counts")
    over = status in TERMINAL_STATUSES
    return [
        (
            f"finished_tasks {n['finished_tasks']} is not completed {n['completed_tasks']} + failed "
            f"{n['failed_tasks']} + skipped {n['skipped_tasks']}",
            outcomes == n["finished_tasks"],
        ),
        (
            f"total_tasks {n['total_tasks']} is not pending {n['pending_tasks']} + running {n['running_tasks']} + "
            f"finished {n['finished_tasks']}",
            parts == n["total_tasks"],
        ),
        (
            f"error_tasks {n['error_tasks']} + warning_tasks {n['warning_tasks']} are more than completed_tasks "
            f"{n['completed_tasks']}",
            n["error_tasks"] + n["warning_tasks"] <= n["completed_tasks"],
        ),
        (
            f"reused_tasks {n['reused_tasks']} are more than completed_tasks {n['completed_tasks']}",
            n["reused_tasks"] <= n["completed_tasks"],
        ),
        (
            f"attempts_finished {n['attempts_finished']} are more than attempts_started {n['attempts_started']}",
            n["attempts_finished"] <= n["attempts_started"],
        ),
        ("the run is over, and running_tasks is not 0", not over or n["running_tasks"] == 0),
        ("the run is over, and active_tasks is not empty", not over or not active),
        ("the run is over, and current_phase_counts is not empty", not over or not phases),
        (
            "active_tasks does not hold running_tasks entries",
            over or not isinstance(active, dict) or len(active) == n["running_tasks"],
        ),
    ]
