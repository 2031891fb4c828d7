"""The causes that may be `certain`, and the kinds of record that must be among their evidence for it.

A cause that isn't listed only ever follows from something else (what is missing, how long it took, what siblings did),
so it is `inferred`: `process_died`, `stalled`, what hangs, `poisoned_task`, `two_writers`, `unknown` and the like.

kind      the record
end       the terminal event with its status and error, or the status and error that a snapshot stores
event     another event of the stream that says it: `tasks_loaded`, `records_lost`, a time before its predecessor's
issue     an issue in a stored result
phase     a `phase_changed` that carries an error
finding   what the scan or a rule of `verify` found wrong at a place; a file that can't be read
lock      `progress.lock`: the writer and its machine's start, or the note that the writer left
"""

from typing import Literal, TypeAlias

from .facts import Evidence, RecordKind

Certainty: TypeAlias = Literal["certain", "inferred"]


def _kinds(*kinds: RecordKind) -> frozenset[RecordKind]:
    return frozenset(kinds)


_TOLD = _kinds("end", "issue", "phase")

CERTAIN_BY: dict[str, frozenset[RecordKind]] = {
    "disk_full": _kinds("end", "event", "issue", "lock", "phase"),
    "out_of_memory": _TOLD,
    "too_many_open_files": _TOLD,
    "unwritable_text": _TOLD,
    "sandbox_failed": _TOLD,
    "no_tasks": _kinds("event"),
    "artifacts_lost": _kinds("issue", "phase"),
    "cleanup_failed": _kinds("issue"),
    "setup_failed": _kinds("issue", "phase"),
    "machine_stopped": _kinds("end", "lock"),
    "records_stopped": _kinds("end", "event", "lock"),
    "records_lost": _kinds("finding"),
    "records_unreadable": _kinds("finding"),
    "records_contradict": _kinds("finding"),
    "stream_damaged": _kinds("finding"),
    "clock_step": _kinds("event"),
    "model_rate_limited": _TOLD,
    "model_quota_used_up": _TOLD,
    "model_refused_key": _TOLD,
    "model_unreachable": _TOLD,
    "model_server_error": _TOLD,
    "model_timeout": _TOLD,
    "context_too_long": _TOLD,
    "model_refused_request": _TOLD,
    "model_failed": _kinds("issue"),
    "harness_failed": _kinds("issue", "phase"),
    "attempt_timed_out": _kinds("issue"),
    "grader_failed": _kinds("issue", "phase"),
    "grader_timeout": _kinds("issue"),
    "stopped_by_user": _TOLD,
    "left_unfinished": _kinds("lock", "end"),
    "deadline_exceeded": _TOLD,
    "terminated_by_signal": _TOLD,
}
"""Cause → kinds of records that make it certain."""


def says(code: str, evidence: Evidence) -> bool:
    """Return whether this evidence is a record that says the cause itself."""
    return evidence.record in CERTAIN_BY.get(code, ())


def first_with_proof(code: str, places: list[Evidence], most: int) -> list[Evidence]:
    """Return the first `most` places, one that says the cause among them where there is one at all."""
    kept = places[:most]
    if not any(says(code, place) for place in kept) and (proof := [p for p in places if says(code, p)]):
        return [*kept[:-1], proof[0]]
    return kept
