"""`resolved_execution_plans`: what each task attempt planned to use, by task id and attempt number.

The record in run_info.json is the event's payload after AgentCompass's key redaction, nulls and empty members kept
(specification, "resolved_execution_plans Structure"). Most attempts of a run plan the same, so payloads are kept once,
as bytes: tens of thousands of attempts cost a few megabytes.
"""

import json
from typing import Any

import msgspec
from msgspec import Raw, Struct
from xxhash import xxh3_64_intdigest

from eventstore.errors import MalformedLineError
from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.format.records import Block, Recorded
from eventstore.redaction.redactor import redact_keys
from projections.fold import Base, block_of, place_events


class State(Struct):
    """`plans` maps task id to attempt number (as text) to the payload's bytes; `unique` holds each payload once.

    It is keyed by digest: hashing a kilobyte for a dict costs ten times as much as XXH3.
    """

    plans: dict[str, dict[str, bytes]] = {}
    unique: dict[int, bytes] = {}


class _Plan(Struct, gc=False):
    attempt: int | None = None
    payload: Raw = Raw(b"{}")


_plan_decoder = msgspec.json.Decoder(_Plan)


def initial(base: Base) -> State:
    """No plans; stored ones are joined in `projections.snapshots.run_info`, where it is known whom to believe."""
    return State()


def apply(state: State, record: Recorded, /) -> State:
    """Note the plan in one record, if it is one."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /) -> State:
    """Note the plans among a batch of records."""
    for head, line in zip(block.heads, block.lines, strict=True):
        if head.event == "execution_plan_resolved" and head.task_id:
            note_plan(state, head.task_id, line)
    return state


EVENTS = place_events(
    takes={
        "execution_plan_resolved",
    },
    passes_over={
        "run_started",
        "tasks_loaded",
        "reuse_loaded",
        "task_started",
        "phase_changed",
        "attempt_started",
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


def note_plan(state: State, task_id: str, line: bytes) -> None:
    """Keep the plan in one line; the last one of an attempt counts. A plan without an attempt has no place."""
    attempt, payload = _read_plan(line)
    if attempt is not None:
        state.plans.setdefault(task_id, {})[attempt] = intern_payload(state, payload)


def intern_payload(state: State, payload: bytes) -> bytes:
    """Return the one copy of these bytes that the state keeps."""
    digest = xxh3_64_intdigest(payload)
    known = state.unique.setdefault(digest, payload)
    return known if known == payload else payload


def _read_plan(line: bytes) -> tuple[str | None, bytes]:
    try:
        plan = _plan_decoder.decode(line)
        return None if plan.attempt is None else str(plan.attempt), bytes(plan.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            members = codec.parse_object(line)
        except MalformedLineError:
            return None, b"{}"
    attempt: Any = members.get("attempt")
    return None if attempt is None else str(attempt), codec.dump_compact(members.get("payload") or {})


def resolved(state: State) -> dict[str, Json]:
    """Return the `resolved_execution_plans` object of run_info.json."""
    parsed: dict[int, Any] = {}  # by identity: an interned payload is parsed once
    for attempts in state.plans.values():
        for payload in attempts.values():
            if id(payload) not in parsed:
                parsed[id(payload)] = _recorded(payload)
    return {
        task_id: {"attempts": {attempt: parsed[id(payload)] for attempt, payload in attempts.items()}}
        for task_id, attempts in state.plans.items()
    }


def _recorded(payload: bytes) -> Any:
    try:
        return redact_keys(json.loads(payload) or {})
    except (ValueError, RecursionError):
        return {}


def render(state: State, /) -> bytes:
    """Return the plans as JSON, in the layout of run_info.json."""
    return codec.dump_pretty(resolved(state), sort_keys=True)
