"""The automaton of a run, its tasks, their attempts and retries: what may follow what.

    run      run_started → tasks_loaded → reuse_loaded → tasks … → summary_started → run_finished
    task     task_started → attempts … → partial_saved → task_finished
    attempt  attempt_started → execution_plan_resolved, phases, retries … → attempt_finished

Sources: the specification's "Events and Event-Specific Fields" and "progress.json". Attempts of one task run side by
side and events of tasks interleave, so nothing is concluded from the order of events of different tasks or attempts.

A fold over blocks that must be lean: of the phases, which are most of a stream, a line is only decoded where its
attempt is not known to be going on, and that is known by comparing bytes.
"""

import math
from collections.abc import Callable
from itertools import islice
from operator import eq
from typing import Any

import msgspec

from eventstore.format.events import ADMINISTRATIVE_EVENTS, SEVERITIES, TERMINAL_STATUSES, Json
from eventstore.format.records import Block, Head, Recorded
from eventstore.format.values import short
from projections import sessions
from projections.fold import Base, block_of, place_events

from . import lifecycle_tasks as tasks
from .findings import Notes, Place
from .lifecycle_state import ATTEMPT, Attempt, State, Task, envelope_of, is_count, payload_of, require

__all__ = ["Attempt", "State", "Task", "apply", "apply_block", "finish", "initial", "is_count", "is_moment", "render"]

SILENT_GAP_SECONDS = 3600.0
"""A stream that says nothing for longer than this is worth a word."""
LATEST_TIMESTAMP = 253402300800.0  # the year 10000


def initial(base: Base, notes: Notes | None = None) -> State:
    """Nothing seen; the request in a stored run_info.json, where there is one, tells the limits."""
    state = State(notes=notes or Notes())
    _take_limits(state, (base.run_info or {}).get("request"))
    return state


def apply(state: State, record: Recorded, /) -> State:
    """Check one record."""
    return apply_block(state, block_of(record))


def apply_block(state: State, block: Block, /) -> State:
    """Check a batch of records; findings go to `state.notes`."""
    _check_repeats(state, block)
    for part in sessions.parts(state.writers, block):
        if part.border:
            _end_work(state)
        _apply_part(state, part)
    return state


def _end_work(state: State) -> None:
    """Another process goes on: what the one before had in flight may begin anew, and the run be summarized again."""
    state.interrupted.update(state.active)
    state.active.clear()
    state.summarizing = False


def _apply_part(state: State, part: sessions.Part) -> None:
    block, active = part.block, state.active
    first = block.heads[0].event
    if state.events == 0 and first != "run_started" and first not in ADMINISTRATIVE_EVENTS:
        state.notes.add("no_run_started", f"the stream begins with {short(first)}", Place(block, 0))
    for index, (head, line) in enumerate(zip(block.heads, block.lines, strict=True)):
        if head.event == "phase_changed":
            task = active.get(head.task_id)
            if task is not None:
                start = task.usual_start  # most times of a run have as many digits, and searching costs more
                if line[start : start + task.width] in task.spellings:
                    task.last = line
                    continue
                start = line.find(ATTEMPT, task.position_of_attempt)
                if line[start : start + task.width] in task.spellings:
                    task.last = line
                    continue
            tasks.phase_changed(state, Place(block, index), head, line)
        else:
            _dispatch(state, Place(block, index), head, line)
    state.events += len(block.heads)
    _check_clock(state, part)


def finish(state: State) -> Notes:
    """Apply the rules that need the whole stream; once, after the last record."""
    if state.live is not None:
        state.notes.add("run_live", f"the writer lives: {state.live}")
    elif state.events and state.ended is None:
        state.notes.add("no_terminal_event", f"the stream stops after {state.events} events without run_finished")
        for task_id, task in (state.interrupted | state.active).items():
            tasks.note_in_flight(state, task_id, task, None)
    if state.analyzes and not state.evaluates:
        state.notes.add("analysis_stream", "the stream is a re-analysis: the evaluation's own stream is not here")
    return state.notes


def render(state: State, /) -> bytes:
    """Return the findings as JSON."""
    return msgspec.json.encode(state.notes.findings)


# -- one line


def _dispatch(state: State, place: Place, head: Head, line: bytes) -> None:
    rule = _RULES.get(head.event)
    if rule is not None:
        if state.ended is not None and head.event != "run_started":
            state.notes.add("event_after_end", f"{head.event} after run_finished", place, task_id=head.task_id)
        rule(state, place, head, line)
    elif head.event == "stream_repaired":
        state.notes.add("repaired", _repair_in_words(payload_of(line)), place)
    elif head.event not in ADMINISTRATIVE_EVENTS and head.event not in state.unknown_events:
        state.unknown_events.add(head.event)
        state.notes.add("unknown_event", f"the specification has no event {head.event!r}", place, task_id=head.task_id)


def _repair_in_words(payload: Json) -> str:
    """Return what a repair says of itself; anything may stand in a payload."""
    aside, removed, backup = (payload.get(name) for name in ("set_aside", "removed", "backup"))
    count = aside.get("bytes") if isinstance(aside, dict) else "?"
    places = len(removed) if isinstance(removed, list) else 0
    words = f"repaired: {short(count)} bytes were set aside"
    if places:
        words += f", {places} place{'s' * (places > 1)} account{'s' * (places == 1)} for missing lines"
    name = backup.get("file") if isinstance(backup, dict) else None
    return f"{words}; the stream before it is {short(name)}" if name else words


# -- run


def _run_started(state: State, place: Place, head: Head, line: bytes) -> None:
    payload = payload_of(line)
    if state.starts:
        ended = "after the run had ended" if state.ended is not None else f"with {len(state.active)} tasks open"
        state.notes.add("run_restarted", f"run_started again, {ended}", place)
    require(state, place, payload, "run_started", ("benchmark", "harness", "environment", "model"))
    _take_limits(state, payload.get("request"))
    state.starts += 1
    state.started = state.started or payload
    state.ended = state.status = None
    state.loaded = state.reuse_loaded = state.summarizing = False
    state.active.clear()
    state.interrupted.clear()
    state.finished.clear()
    state.positions.clear()


def _take_limits(state: State, request: Any) -> None:
    execution = request.get("execution") if isinstance(request, dict) else None
    if not isinstance(execution, dict):
        return
    attempts = execution.get("attempts")
    k = attempts.get("k") if isinstance(attempts, dict) else None
    state.attempts_limit = k if is_count(k) else state.attempts_limit
    limit = execution.get("max_retries")
    state.retries_limit = limit if is_count(limit) else state.retries_limit


def _tasks_loaded(state: State, place: Place, head: Head, line: bytes) -> None:
    payload = payload_of(line)
    if state.loaded:
        state.notes.add("repeated_event", "tasks_loaded again", place)
    if state.reuse_loaded or state.active or state.finished:
        state.notes.add("out_of_order", "tasks_loaded after events that need it", place)
    state.loaded = True
    total = payload.get("total_tasks")
    state.total_tasks = total if is_count(total) else None
    if state.total_tasks is None:
        state.notes.add("payload_incomplete", f"tasks_loaded has total_tasks {short(total)}", place)


def _reuse_loaded(state: State, place: Place, head: Head, line: bytes) -> None:
    payload = payload_of(line)
    state.evaluates = True
    if state.reuse_loaded:
        state.notes.add("repeated_event", "reuse_loaded again", place)
    if not state.loaded or state.active or state.finished:
        state.notes.add("out_of_order", "reuse_loaded does not stand between tasks_loaded and the first task", place)
    state.reuse_loaded = True
    reused, to_run = payload.get("reused_tasks"), payload.get("tasks_to_run")
    severities = payload.get("reused_severity_counts")
    if not (is_count(reused) and is_count(to_run) and isinstance(severities, dict)):
        state.notes.add("payload_incomplete", f"reuse_loaded has {short(payload)}", place)
        return
    state.reused_tasks, state.reuse_known = reused, True
    if state.total_tasks is not None and reused + to_run != state.total_tasks:
        words = f"{reused} reused and {to_run} to run are not the {state.total_tasks} that were loaded"
        state.notes.add("reuse_arithmetic", words, place)
    counts = [count for count in severities.values() if is_count(count)]
    if sum(counts) > reused or len(counts) != len(severities) or not set(severities) <= {*SEVERITIES, ""}:
        state.notes.add("reuse_arithmetic", f"severities {short(severities)} of {reused} reused tasks", place)


def _summary_started(state: State, place: Place, head: Head, line: bytes) -> None:
    if state.summarizing:
        state.notes.add("repeated_event", "summary_started again", place)
    for task_id in list(state.active)[:1]:
        words = f"summary_started with {len(state.active)} tasks open"
        state.notes.add("out_of_order", words, place, task_id=task_id)
    state.summarizing = True


def _run_finished(state: State, place: Place, head: Head, line: bytes) -> None:
    envelope = envelope_of(line)
    status = str(envelope.status or "completed")
    if envelope.status not in TERMINAL_STATUSES:
        state.notes.add("unknown_status", f"run_finished with status {short(envelope.status)}", place)
    if state.ended is not None:
        state.notes.add("repeated_event", "run_finished again", place)
    open_tasks = state.interrupted | state.active
    for task_id, task in open_tasks.items():
        if status == "completed":
            words = "the run completed although this task has not finished"
            state.notes.add("completed_with_open_task", words, place, task_id=task_id)
        else:
            tasks.note_in_flight(state, task_id, task, place)
    if status == "completed" and state.ended is None:
        _check_completeness(state, place)
    state.status = status
    state.ended = {"status": envelope.status, "timestamp": head.timestamp, "payload": payload_of(line)}
    state.cut_off |= open_tasks
    state.active.clear()
    state.interrupted.clear()


def _check_completeness(state: State, place: Place) -> None:
    finished = state.reused_tasks + len(state.finished)
    if state.total_tasks is not None and not (state.active or state.interrupted) and finished != state.total_tasks:
        words = f"the run completed with {finished} tasks finished or reused of {state.total_tasks} loaded"
        state.notes.add("completed_but_incomplete", words, place)
    if not state.summarizing:
        state.notes.add("completed_without_summary", "the run completed, and summary_started is not there", place)


_RULES: dict[str, Callable[[State, Place, Head, bytes], None]] = {
    "run_started": _run_started,
    "tasks_loaded": _tasks_loaded,
    "reuse_loaded": _reuse_loaded,
    "task_started": tasks.task_started,
    "phase_changed": tasks.phase_changed,
    "attempt_started": tasks.attempt_started,
    "execution_plan_resolved": tasks.plan_resolved,
    "attempt_retry": tasks.attempt_retry,
    "attempt_finished": tasks.attempt_finished,
    "partial_saved": tasks.partial_saved,
    "task_finished": tasks.task_finished,
    "summary_started": _summary_started,
    "run_finished": _run_finished,
}
EVENTS = place_events(
    takes={*_RULES, "stream_repaired"},
    passes_over={"metric_artifacts_written", "records_lost", "stream_scrubbed"},
)


# -- clock


def _check_clock(state: State, part: sessions.Part) -> None:
    """Steps back, silences and times that are none; a block whose times only rise, without a gap, costs one sort.

    Bookkeeping has its own time, which says nothing of the run's; and while no process works, there is no silence.
    """
    block = part.block
    times = [head.timestamp for head in block.heads]
    before = state.last_timestamp
    try:
        rising = times == sorted(times) and times[0] > 0 and times[-1] < LATEST_TIMESTAMP
        if rising and block.offsets is None and not part.bookkeeping:
            start = times[0] if before is None else before
            if times[0] - start >= 0 and times[-1] - start < SILENT_GAP_SECONDS:
                state.last_timestamp = times[-1]
                return
    except OverflowError:
        pass
    for index, now in enumerate(times):
        if not is_moment(now):
            state.notes.add("odd_timestamp", f"timestamp {short(now)} is no moment in time", Place(block, index))
            continue
        if part.bookkeeping or not sessions.is_observation(block.heads[index], block.lines[index]):
            continue
        if state.last_timestamp is not None:
            _check_step(state, Place(block, index), float(now) - state.last_timestamp, at_work=not part.border)
        state.last_timestamp = float(now)


def _check_repeats(state: State, block: Block) -> None:
    """Lines that stand twice in a row."""
    lines = block.lines
    if state.last_line == lines[0]:
        _note_repeat(state, block, 0)
    state.last_line = lines[-1]
    if True in map(eq, lines, islice(lines, 1, None)):
        for index in range(1, len(lines)):
            if lines[index] == lines[index - 1]:
                _note_repeat(state, block, index)


def _note_repeat(state: State, block: Block, index: int) -> None:
    words = "the same line as before, its time included"
    state.notes.add("repeated_line", words, Place(block, index), task_id=block.heads[index].task_id)


def is_moment(value: Any) -> bool:
    """Return whether a number is a moment in time: positive, and before the year 10000."""
    return (isinstance(value, int) or math.isfinite(value)) and 0 < value < LATEST_TIMESTAMP


def _check_step(state: State, place: Place, seconds: float, *, at_work: bool) -> None:
    if seconds < 0:
        state.clock_steps += 1
        words = f"the clock stands {-seconds:.3f} s before the event before it"
        state.notes.add("clock_back", words, place)
    elif seconds >= SILENT_GAP_SECONDS and at_work:
        state.notes.add("silent_gap", f"{seconds:.0f} s passed without an event", place)
