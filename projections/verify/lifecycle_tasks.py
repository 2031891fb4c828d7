"""The lifecycle of tasks, their attempts and retries: one function for each event that speaks of one.

Each takes the state, the event's place, its head and its line, notes what is wrong and moves the state on.
"""

from typing import Any

from eventstore.format.events import SEVERITIES, Json
from eventstore.format.records import Head
from eventstore.format.values import short

from .findings import Place
from .lifecycle_state import Attempt, Envelope, State, Task, envelope_of, is_count, payload_of, require

TASK_STATUSES = ("completed", "failed", "skipped")
ATTEMPT_STATUSES = ("completed", "failed")
RETRY_SCOPES = ("attempt", "evaluate")


def note_in_flight(state: State, task_id: str, task: Task, place: Place | None) -> None:
    """A task that had not finished when its run ended or died, with what it was doing."""
    running = [str(number) for number, attempt in task.attempts.items() if not attempt.finished]
    envelope = envelope_of(task.last)
    which = f"attempt {' and '.join(running)} going on" if running else "no attempt going on"
    words = f"the task had not finished when the stream ended: {which}, last in {envelope.phase or 'no phase'}"
    state.notes.add("task_in_flight", words, place, task_id=task_id, attempt=envelope.attempt)


# -- task


def task_started(state: State, place: Place, head: Head, line: bytes) -> None:
    """A task enters scheduled execution."""
    if head.task_id is None:
        state.notes.add("no_task_id", "task_started without a task_id", place)
        return
    if not head.task_id:
        state.notes.add("no_task_id", "task_started with an empty task_id", place, task_id=head.task_id)
    if not state.loaded:
        state.notes.add("out_of_order", "task_started before tasks_loaded", place, task_id=head.task_id)
    if state.summarizing:
        state.notes.add("out_of_order", "task_started after summary_started", place, task_id=head.task_id)
    state.interrupted.pop(head.task_id, None)
    if head.task_id in state.active or head.task_id in state.finished:
        state.notes.add("task_started_twice", "the task had started before", place, task_id=head.task_id)
        state.finished.pop(head.task_id, None)
    envelope = envelope_of(line)
    payload = payload_of(line)
    index, total = payload.get("index"), payload.get("total")
    _check_position(state, place, head.task_id, index, total)
    state.active[head.task_id] = Task(last=line, category=envelope.category, position=(index, total))
    started = state.reused_tasks + len(state.active) + len(state.finished)
    if state.total_tasks is not None and started == state.total_tasks + 1:
        words = f"more tasks start or are reused than the {state.total_tasks} that were loaded"
        state.notes.add("more_tasks_than_loaded", words, place, task_id=head.task_id)


def _check_position(state: State, place: Place, task_id: str, index: Any, total: Any) -> None:
    if not (is_count(index) and is_count(total)):
        words = f"task_started has index {short(index)} and total {short(total)}"
        state.notes.add("payload_incomplete", words, place, task_id=task_id)
        return
    other = state.positions.setdefault(index, task_id)
    if other != task_id:
        words = f"index {index} is also the index of task {short(other)}"
        state.notes.add("index_repeated", words, place, task_id=task_id)


def _task_of(state: State, place: Place, head: Head) -> Task | None:
    """Return the running task that an event speaks of; what is wrong with it otherwise is noted."""
    task = state.active.get(head.task_id) if head.task_id is not None else None
    if task is not None:
        return task
    if head.task_id in state.interrupted and head.task_id is not None:
        # Another process goes on with it where the one before was, without starting it anew.
        task = state.active[head.task_id] = state.interrupted.pop(head.task_id)
        return task
    if head.task_id is None:
        state.notes.add("no_task_id", f"{head.event} without a task_id", place)
    elif head.task_id in state.finished:
        if head.event == "task_finished":
            state.notes.add("task_finished_twice", "the task had finished before", place, task_id=head.task_id)
        else:
            state.notes.add("late_event", f"{head.event} after the task finished", place, task_id=head.task_id)
    elif state.ended is None:
        words = f"{head.event} of a task that never started"
        state.notes.add("task_not_started", words, place, task_id=head.task_id)
    return None


def task_finished(state: State, place: Place, head: Head, line: bytes) -> None:
    """A task leaves scheduled execution."""
    task = _task_of(state, place, head)
    envelope = envelope_of(line)
    payload = payload_of(line)
    status, severity = envelope.status, payload.get("severity")
    _check_outcome(state, place, head.task_id, status, severity, payload)
    if task is None or head.task_id is None:
        return
    if state.summarizing:
        state.notes.add("out_of_order", "task_finished after summary_started", place, task_id=head.task_id)
    if (payload.get("index"), payload.get("total")) != task.position:
        words = f"index {short(payload.get('index'))} of {short(payload.get('total'))}, at the start it was {short(task.position[0])} of {short(task.position[1])}"  # noqa: E501
        state.notes.add("position_mismatch", words, place, task_id=head.task_id)
    _check_category(state, place, head.task_id, task, envelope)
    for number, attempt in task.attempts.items():
        if not attempt.finished:
            code = "attempt_open" if status == "completed" else "attempt_cut_off"
            words = f"the task finished as {short(status)}, attempt {number} has no attempt_finished"
            state.notes.add(code, words, place, task_id=head.task_id, attempt=number)
    task.status, task.severity, task.last = status, severity, b""
    task.spellings.clear()
    state.finished[head.task_id] = state.active.pop(head.task_id)


def _check_outcome(state: State, place: Place, task_id: str | None, status: Any, severity: Any, payload: Json) -> None:
    if status not in TASK_STATUSES:
        state.notes.add("unknown_status", f"task_finished with status {short(status)}", place, task_id=task_id)
    if "severity" not in payload:
        state.notes.add("payload_incomplete", "task_finished without severity", place, task_id=task_id)
    elif severity not in (*SEVERITIES, ""):
        state.notes.add("unknown_severity", f"task_finished with severity {short(severity)}", place, task_id=task_id)
    elif not _agrees(status, severity):
        words = f"status {status} with severity {severity}"
        state.notes.add("severity_against_status", words, place, task_id=task_id)


def _agrees(status: object, severity: object) -> bool:
    """Return whether a task can end so: a fatal issue fails it, nothing else does, and what was skipped has neither."""
    if status == "skipped":
        return severity not in ("fatal", "error")
    return (status == "failed") == (severity == "fatal")


def _check_category(state: State, place: Place, task_id: str, task: Task, envelope: Envelope) -> None:
    if envelope.category != task.category:
        words = f"category {short(envelope.category)}, at the start it was {short(task.category)}"
        state.notes.add("category_changed", words, place, task_id=task_id, attempt=envelope.attempt)


def partial_saved(state: State, place: Place, head: Head, line: bytes) -> None:
    """A task-level result was persisted."""
    task = _task_of(state, place, head)
    if task is not None and head.task_id is not None:
        task.saved += 1
        _check_category(state, place, head.task_id, task, envelope_of(line))


# -- attempt


def phase_changed(state: State, place: Place, head: Head, line: bytes) -> None:
    """A task enters a phase; called where the quick check of `apply_block` is not enough."""
    if state.ended is not None:
        state.notes.add("event_after_end", "phase_changed after run_finished", place, task_id=head.task_id)
    task = _task_of(state, place, head)
    envelope = envelope_of(line)
    state.analyzes = state.analyzes or envelope.phase == "analyze"
    if not isinstance(envelope.phase, str) or not envelope.phase:
        words = f"phase_changed with phase {short(envelope.phase)}"
        state.notes.add("phase_missing", words, place, task_id=head.task_id, attempt=envelope.attempt)
    if task is None or head.task_id is None:
        return
    task.last = line
    _check_category(state, place, head.task_id, task, envelope)
    if envelope.attempt is None or _attempt_of(state, place, head, task, envelope.attempt) is not None:
        task.learn(line, envelope.attempt)


def _attempt_of(state: State, place: Place, head: Head, task: Task, number: Any) -> Attempt | None:
    """Return the running attempt that an event speaks of; what is wrong with it otherwise is noted."""
    if not is_count(number) or number == 0:
        words = f"{head.event} with attempt {short(number)}"
        state.notes.add("attempt_number", words, place, task_id=head.task_id)
        return None
    attempt = task.attempts.get(number)
    if attempt is None:
        words = f"{head.event} of an attempt that never started"
        state.notes.add("attempt_not_started", words, place, task_id=head.task_id, attempt=number)
        return None
    if attempt.finished:
        code = "attempt_finished_twice" if head.event == "attempt_finished" else "late_attempt_event"
        words = f"{head.event} after the attempt finished"
        state.notes.add(code, words, place, task_id=head.task_id, attempt=number)
        return None
    return attempt


def attempt_started(state: State, place: Place, head: Head, line: bytes) -> None:
    """An attempt starts."""
    state.evaluates = True
    task = _task_of(state, place, head)
    envelope = envelope_of(line)
    number: Any = envelope.attempt
    if not is_count(number) or number == 0:
        words = f"attempt_started with attempt {short(number)}"
        state.notes.add("attempt_number", words, place, task_id=head.task_id)
        return
    if task is None or head.task_id is None:
        return
    _check_category(state, place, head.task_id, task, envelope)
    if number in task.attempts:
        words = "the attempt had started before"
        state.notes.add("attempt_started_twice", words, place, task_id=head.task_id, attempt=number)
    if state.attempts_limit is not None and number > state.attempts_limit:
        words = f"attempt {number} of k = {state.attempts_limit}"
        state.notes.add("attempt_beyond_k", words, place, task_id=head.task_id, attempt=number)
    task.attempts[number] = Attempt()
    task.last = line


def attempt_finished(state: State, place: Place, head: Head, line: bytes) -> None:
    """An attempt ends."""
    task = _task_of(state, place, head)
    envelope = envelope_of(line)
    if envelope.status not in ATTEMPT_STATUSES:
        words = f"attempt_finished with status {short(envelope.status)}"
        state.notes.add("unknown_status", words, place, task_id=head.task_id, attempt=envelope.attempt)
    if task is None or head.task_id is None:
        return
    _check_category(state, place, head.task_id, task, envelope)
    attempt = _attempt_of(state, place, head, task, envelope.attempt)
    if attempt is not None:
        attempt.finished = True
        task.forget(envelope.attempt)


def plan_resolved(state: State, place: Place, head: Head, line: bytes) -> None:
    """An attempt's plan is resolved."""
    task = _task_of(state, place, head)
    if task is None or head.task_id is None:
        return
    envelope = envelope_of(line)
    _check_category(state, place, head.task_id, task, envelope)
    if envelope.phase != "plan":
        words = f"execution_plan_resolved with phase {short(envelope.phase)}"
        state.notes.add("plan_phase", words, place, task_id=head.task_id, attempt=envelope.attempt)
    attempt = _attempt_of(state, place, head, task, envelope.attempt)
    if attempt is not None:
        attempt.plans += 1
        if attempt.plans == 2:
            words = "a second plan of one attempt"
            state.notes.add("plan_twice", words, place, task_id=head.task_id, attempt=envelope.attempt)


def attempt_retry(state: State, place: Place, head: Head, line: bytes) -> None:
    """A result is discarded and runs again."""
    task = _task_of(state, place, head)
    envelope = envelope_of(line)
    payload = payload_of(line)
    _check_retry(state, place, head, envelope.attempt, payload)
    if task is None or head.task_id is None:
        return
    task.last = line
    _check_category(state, place, head.task_id, task, envelope)
    attempt = _attempt_of(state, place, head, task, envelope.attempt)
    retry = payload.get("retry")
    if attempt is not None and is_count(retry):
        if retry != attempt.retries + 1:
            words = f"retry {retry} after {attempt.retries}"
            state.notes.add("retry_order", words, place, task_id=head.task_id, attempt=envelope.attempt)
        attempt.retries = retry


def _check_retry(state: State, place: Place, head: Head, number: Any, payload: Json) -> None:
    about: Any = {"task_id": head.task_id, "attempt": number}
    retry, limit = payload.get("retry"), payload.get("max_retries")
    require(state, place, payload, "attempt_retry", ("retry", "max_retries", "stage", "scope"), **about)
    if is_count(retry) and is_count(limit) and retry > limit:
        state.notes.add("retry_beyond_max", f"retry {retry} of at most {limit}", place, **about)
    if is_count(limit) and state.retries_limit is not None and limit != state.retries_limit:
        words = f"max_retries {limit}, the request says {state.retries_limit}"
        state.notes.add("retry_limit_differs", words, place, **about)
    if payload.get("scope") is not None and payload["scope"] not in RETRY_SCOPES:
        state.notes.add("retry_scope", f"scope {short(payload['scope'])}", place, **about)
