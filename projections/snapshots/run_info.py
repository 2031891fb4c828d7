"""`run_info.json`: status, end, error, plans and provenance, with the stored file as its base.

AgentCompass writes some facts to the file before, or instead of, the stream; so on a stream that it wrote, what is
stored stays unless the stream proves more, and an analysis-only stream changes nothing. The same holds where our
writer records only the stream (the reporter). Where our writer keeps the file too, the stream is the truth and the file
can be rebuilt from it alone (specification, "run_info.json"; docs/replay.md).
"""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Any

from msgspec import Struct

from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.format.heads import session_writer
from eventstore.format.records import Block, Head, Recorded
from eventstore.format.values import as_object, as_text
from eventstore.redaction.redactor import redact_text
from projections.fold import Base, block_of, place_events
from projections.sessions import closed_by
from projections.timeline.rows import clock_stepped, elapsed_seconds

from . import plans
from .progress import IDENTITY

SCHEMA_VERSION = "agentcompass.run_info.v3"
_END = ("status", "finished_at", "error")
_NO_END = frozenset({"", "running", "pending"})
_LATER = (*_END, "metric_artifacts", "resolved_execution_plans")
_WANTED = frozenset({"execution_plan_resolved", "run_started", "run_finished", "metric_artifacts_written"})
_EVALUATES = frozenset({"reuse_loaded", "attempt_started", "attempt_finished", "execution_plan_resolved"})
EVENTS = place_events(
    takes=_WANTED | _EVALUATES | {"phase_changed"},
    passes_over={
        "tasks_loaded",
        "task_started",
        "attempt_retry",
        "partial_saved",
        "task_finished",
        "summary_started",
        "stream_repaired",
        "stream_scrubbed",
        "records_lost",
    },
)
_WANTED_BUT_PLANS = _WANTED - {"execution_plan_resolved"}


class State(Struct):
    """`started` and `ended` are members of the run's first `run_started` and its last `run_finished`.

    `evaluates` tells that the stream has something only an evaluation has; `analyzes`, that it has the phase that only
    a re-analysis has. `owns` tells that the writer of the present session keeps `run_info.json`, `owned` that the one
    who started the run did, `reopened` that such a writer started it again after its end.
    """

    stored: Json | None
    moment: bool
    plans: plans.State
    run_id: str | None = None
    first_timestamp: float | None = None
    started: Json | None = None
    ended: Json | None = None
    metric_artifacts: Json | None = None
    evaluates: bool = False
    analyzes: bool = False
    owns: bool = False
    owned: bool = False
    reopened: bool = False


def initial(base: Base) -> State:
    """Return the stored file as the base; for an earlier moment, without what may have come later."""
    stored = base.run_info
    if stored is not None and base.moment:
        stored = {name: value for name, value in stored.items() if name not in _LATER}
    return State(stored=stored, moment=base.moment, plans=plans.initial(base))


def apply(state: State, record: Recorded, /) -> State:
    """Fold one record."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /, *, with_plans: bool = True) -> State:
    """Fold a batch of records; only a few kinds of event matter here, and plans only to those who want them."""
    if state.run_id is None:
        state.run_id = block.heads[0].run_id
        state.first_timestamp = block.heads[0].timestamp
    if not state.evaluates:
        _tell_kind(state, block)
    wanted = _WANTED if with_plans else _WANTED_BUT_PLANS
    indexes = [index for index, head in enumerate(block.heads) if head.event in wanted]
    for index in sorted({*indexes, *block.sessions}) if block.sessions else indexes:
        if index in block.sessions:
            state.owns = session_writer(block.lines[index]).get("owns_run_info") is True
        if block.heads[index].event in wanted:
            _apply_wanted(state, block.heads[index], block.lines[index])
    return state


class _WithoutPlans:
    """The same fold for those who don't ask for plans."""

    initial = staticmethod(initial)

    @staticmethod
    def apply_block(state: State, block: Block, /) -> State:
        return apply_block(state, block, with_plans=False)

    @staticmethod
    def record(state: State) -> Json | None:
        return record(state, with_plans=False)


WITHOUT_PLANS = _WithoutPlans()


def _apply_wanted(state: State, head: Head, line: bytes) -> None:
    if head.event == "execution_plan_resolved":
        if head.task_id:
            plans.note_plan(state.plans, head.task_id, line)
        return
    event = codec.decode_accepted(line, head)
    members = codec.envelope_members(event)
    if head.event == "run_started":
        if state.started is None:
            state.started, state.owned = members, state.owns
        else:
            state.reopened |= state.owns
        state.ended = None  # a run that was opened again goes on
        state.analyzes = state.analyzes or members["payload"].get("analysis") is True  # as our recorder begins one
    elif head.event == "run_finished":
        state.ended = members
    elif head.event == "metric_artifacts_written":
        state.metric_artifacts = newest_artifacts(state.metric_artifacts, members["payload"])


def _tell_kind(state: State, block: Block) -> None:
    for head, line in zip(block.heads, block.lines, strict=True):
        if head.event in _EVALUATES:
            state.evaluates = True
            return
        if head.event == "phase_changed" and b'"analyze"' in line:
            state.analyzes = True


def is_analysis_only(state: State) -> bool:
    """Return whether the stream is one that `agentcompass analysis` wrote: it describes no evaluation."""
    return state.analyzes and not state.evaluates


def record(state: State, *, with_plans: bool = True) -> Json | None:
    """Return the object that run_info.json should hold; None where neither a file nor a stream says anything.

    Without plans, those in it are the stored ones alone: joining thousands of them takes longer than all the rest.
    """
    stored = state.stored
    if state.run_id is None or is_analysis_only(state):
        return stored
    info: Json = dict(stored) if stored is not None else {"schema_version": SCHEMA_VERSION}
    _fill_in_start(info, state)
    _set_end(info, state)
    if with_plans:
        _join_plans(info, state)
    artifacts = newest_artifacts(info.get("metric_artifacts"), state.metric_artifacts)
    if artifacts is not None:
        info["metric_artifacts"] = artifacts
    return info


def render(state: State, /) -> bytes:
    """run_info.json as bytes: keys sorted, as AgentCompass writes it. Empty where there is nothing to say."""
    info = record(state)
    return b"" if info is None else codec.dump_pretty(info, sort_keys=True)


def _fill_in_start(info: Json, state: State) -> None:
    """What is missing from the file and known from `run_started`; nothing that is stored is replaced."""
    payload: Json = (state.started or {}).get("payload") or {}
    info.setdefault("run_id", state.run_id)
    if "started_at" not in info and state.first_timestamp is not None:
        info["started_at"] = payload.get("started_at") or iso_time(state.first_timestamp, UTC)
    if "request" not in info and state.started is not None:
        ids = {name: {"id": payload[name]} for name in IDENTITY if payload.get(name)}
        info["request"] = payload.get("request") or ids
    if "reused_from" not in info and payload.get("reused_from"):
        info["reused_from"] = payload["reused_from"]


def stored_end(info: Json | None) -> str | None:
    """Return the status with which a `run_info.json` says that its run has ended; None where it says no such thing."""
    status = (info or {}).get("status")
    return status if isinstance(status, str) and status not in _NO_END else None


def shown_status(state: State, info: Json | None, folded: Json) -> str | None:
    """Return the status of a run: its recorded end, else its stored end, else what its stream says so far.

    `info` is its `record`, `folded` its folded `progress.json`. A re-analysis has the status that its own stream says.
    """
    if state.run_id is not None and is_analysis_only(state):
        return as_text(folded.get("status"))
    end = stored_end(info)
    if end is None and state.run_id is not None:
        return as_text(folded.get("status"))
    return end if end is not None else as_text((info or {}).get("status"))


def _set_end(info: Json, state: State) -> None:
    """The end that the stream records. Without one the stored end stays: the stream may have stopped before it."""
    if state.reopened or (state.owned and stored_end(info) is None):
        for name in _END:  # of an earlier end, or none at all
            info.pop(name, None)
    ended = state.ended
    if ended is None:
        return
    status = str(ended.get("status") or "completed")
    agrees = info.get("status") == status
    info["status"] = status
    if not agrees or "finished_at" not in info:
        info["finished_at"] = iso_time(ended["timestamp"], _offset_of(info.get("started_at")))
    error = ended["payload"].get("error")
    if error and not (agrees and "error" in info):
        info["error"] = redact_text(str(error))
    elif not agrees and not error:
        info.pop("error", None)


def _join_plans(info: Json, state: State) -> None:
    """Stored plans and those of the stream, attempt by attempt; ours win on our own streams, else the stored ones."""
    joined: Json = {}
    sources = [as_object(info.get("resolved_execution_plans")), plans.resolved(state.plans)]
    for source in sources if state.owned else reversed(sources):
        for task_id, entry in source.items():
            attempts = entry.get("attempts") if isinstance(entry, dict) else None
            if isinstance(attempts, dict):
                joined.setdefault(task_id, {"attempts": {}})["attempts"].update(attempts)
            else:
                joined[task_id] = entry
    if joined:
        info["resolved_execution_plans"] = joined


def newest_artifacts(one: Any, other: Any) -> Json | None:
    """Of two `metric_artifacts` records the one generated later (specification, "metric_artifacts Structure")."""
    known = [entry for entry in (one, other) if isinstance(entry, dict) and entry]
    return max(known, key=lambda entry: _moment(entry.get("generated_at")), default=None)


def _moment(text: Any) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return float("-inf")


class RunTimes(Struct, frozen=True):
    """When a run began and ended, in Unix time, and how many seconds it took.

    `clock_stepped` tells that the clock went back from its start to its end, so that there are no `seconds`.
    """

    started_at: float | None
    finished_at: float | None
    seconds: float | None
    clock_stepped: bool


def run_times(info: Json, ended: Json | None, first: float | None, last: float | None) -> RunTimes:
    """Return when a run began and ended, and how long it took: the stream's times, else those in the file.

    `ended` are the members of its terminal event, `first` and `last` the times of its first and last event, bookkeeping
    left aside. A run whose end is recorded nowhere, or was recorded later by `close`, took as long as its events.
    """
    began = first if first is not None else _unix(info.get("started_at"))
    finished = _unix(info.get("finished_at")) if ended is None else ended["timestamp"]
    end = last if finished is None or (ended is None and last is not None and last > finished) else finished
    if ended is not None and last is not None and closed_by(ended["payload"]) is not None:
        end = last
    return RunTimes(began, finished, elapsed_seconds(began, end), clock_stepped(began, end))


def _unix(text: Any) -> float | None:
    moment = _moment(text)
    return None if moment == float("-inf") else moment


def iso_time(timestamp: float, zone: tzinfo) -> str | None:
    """Time-zone-aware ISO 8601 to the second, as run_info.json has it; None for what is no moment in time."""
    try:
        return datetime.fromtimestamp(timestamp, zone).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None


def _offset_of(started_at: Any) -> tzinfo:
    """Return the zone that the run's own times are written in."""
    try:
        return datetime.fromisoformat(started_at).tzinfo or UTC
    except (TypeError, ValueError):
        return UTC


# -- run_info.json in pieces: the bytes of `run_info.render`, made step by step

_BIG = ("resolved_execution_plans",)


def pretty_pieces(info: Json) -> Iterator[bytes]:
    """Yield what `codec.dump_pretty(info, sort_keys=True)` gives, with a piece of its own for each task's plans."""
    opening = b"{\n"
    for name, value in sorted(info.items()):
        yield opening + b"  " + codec.dump_compact(name) + b": "
        if name in _BIG and isinstance(value, dict) and value:
            yield from _members(value)
        else:
            yield _indented(value, b"  ")
        opening = b",\n"
    yield b"{}\n" if not info else b"\n}\n"


def _members(value: Json) -> Iterator[bytes]:
    opening = b"{\n"
    for name, item in sorted(value.items()):
        yield opening + b"    " + codec.dump_compact(name) + b": " + _indented(item, b"    ")
        opening = b",\n"
    yield b"\n  }"


def _indented(value: Any, margin: bytes) -> bytes:
    # A newline in JSON text is always layout: inside a string it is an escape.
    return codec.dump_pretty(value, sort_keys=True)[:-1].replace(b"\n", b"\n" + margin)
