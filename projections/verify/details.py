"""Task results against the stream, the request and their own schema (specification, "Evaluation Checkpoints").

Pure: `TaskFacts` are what a reader found in `details/`; findings come out. The stream's side is the lifecycle state.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from eventstore.format.events import SEVERITIES, Json
from eventstore.format.values import short

from .findings import Notes
from .lifecycle import State, Task, is_count

RUNNING = "running"
STATES = {"fatal": "fatal", "error": "error"}
"""The state that a highest severity leads to; any other leads to `normal`."""


class RetryFacts(Struct, frozen=True):
    """One diagnostics file of a discarded result."""

    path: str
    problem: str | None
    task_id: str | None
    attempt: int | None
    retry: int | None
    max_retries: int | None = None


class AttemptFacts(Struct, frozen=True):
    """One `attempt-<n>` folder with its `result.json`. `severity` is the highest of its issues, None where unknown.

    `only_retry_count`: the file holds a retry count and no result, as for an attempt that never came to one.
    """

    number: int
    path: str
    listed: bool
    exists: bool
    has_result: bool = False
    result_problems: list[str] = []
    status: str | None = None
    severity: str | None = None
    retry_count: int = 0
    retries: list[RetryFacts] = []
    metrics: Json = {}
    only_retry_count: bool = False


class TaskFacts(Struct, frozen=True):
    """One task's directory. `path` is relative to the run; `problem` tells why its `task.json` can't be used.

    `begun` tells that there is nothing yet: the process ended as it began the task.
    """

    path: str
    name: str
    state: str | None
    task_id: str | None
    problem: str | None = None
    shape: list[str] = []
    name_matches: bool | None = None
    category: Any = None
    attempt_plan: Json = {}
    published: bool = False
    begun: bool = False
    attempts: list[AttemptFacts] = []


def check_details(
    notes: Notes, tasks: Iterable[TaskFacts], watched: State, *, plan: Any = None, found: bool = True
) -> None:
    """All rules of the group details. `plan` is the request's attempts plan; `found`: there is a details folder."""
    places: dict[str, TaskFacts] = {}
    unknown: list[TaskFacts] = []
    for task in tasks:
        _check_shape(notes, task)
        identity = task.task_id if task.task_id is not None else task.name
        other = places.setdefault(identity, task)
        if other is not task:
            words = f"the task stands in {other.path} as well"
            notes.add("task_in_two_states", words, file=task.path, task_id=task.task_id)
            continue
        _check_plan(notes, task, plan)
        if _check_against_stream(notes, task, watched):
            unknown.append(task)
    _check_unknown(notes, unknown, watched)
    _check_missing(notes, places, watched, found)


def _check_shape(notes: Notes, task: TaskFacts) -> None:
    about: Any = {"task_id": task.task_id}
    if task.begun:
        words = "the folder has no task.json yet: the process ended as it began the task"
        notes.add("task_begun", words, file=task.path, **about)
    elif task.problem is not None:
        notes.add("task_file", task.problem, file=f"{task.path}/task.json", **about)
    for words in task.shape:
        notes.add("task_shape", words, file=task.path, **about)
    if task.name_matches is False:
        notes.add("task_directory", "the directory's name is not that of the task id", file=task.path, **about)
    for attempt in task.attempts:
        for words in attempt.result_problems:
            notes.add("result_file", words, file=f"{attempt.path}/result.json", attempt=attempt.number, **about)
        _check_retry_files(notes, task, attempt)
        if task.published and all(one.only_retry_count for one in task.attempts):
            words = "result.json holds no result, and no other attempt has one"
            notes.add("result_missing", words, file=attempt.path, attempt=attempt.number, **about)
        if task.state != RUNNING and attempt.listed and attempt.exists and not attempt.has_result:
            words = "the attempt has no result.json"
            notes.add("result_missing", words, file=attempt.path, attempt=attempt.number, **about)


def _check_retry_files(notes: Notes, task: TaskFacts, attempt: AttemptFacts) -> None:
    about: Any = {"task_id": task.task_id, "attempt": attempt.number}
    for retry in attempt.retries:
        if retry.problem is not None:
            notes.add("retry_file", retry.problem, file=retry.path, **about)
        elif (retry.task_id, retry.attempt) != (task.task_id, attempt.number):
            words = f"it is of task {short(retry.task_id)}, attempt {short(retry.attempt)}"
            notes.add("retry_file", words, file=retry.path, **about)


def _check_plan(notes: Notes, task: TaskFacts, plan: Any) -> None:
    if isinstance(plan, dict) and task.attempt_plan and task.attempt_plan != plan:
        words = f"attempt_plan is {short(task.attempt_plan)}, the request says {short(plan)}"
        notes.add("attempt_plan_differs", words, file=f"{task.path}/task.json", task_id=task.task_id)
    k = plan.get("k") if isinstance(plan, dict) else None
    for attempt in task.attempts:
        if is_count(k) and attempt.number > k:
            words = f"attempt {attempt.number} of k = {k}"
            notes.add("attempt_beyond_k", words, file=attempt.path, task_id=task.task_id, attempt=attempt.number)


def _check_against_stream(notes: Notes, task: TaskFacts, watched: State) -> bool:
    """Return whether the stream knows nothing of the task; what contradicts it is noted."""
    _check_state(notes, task)
    if task.task_id is None or not watched.evaluates:
        return False
    said = watched.finished.get(task.task_id)
    if said is None:
        going_on = (watched.active | watched.interrupted | watched.cut_off).get(task.task_id)
        if going_on is not None and task.published:
            words = "the result is saved, and the stream has no task_finished"
            notes.add("task_saved_early", words, file=task.path, task_id=task.task_id)
        elif task.state == RUNNING and watched.live is None:
            _note_left(notes, task)
        return going_on is None and task.published
    if task.state == RUNNING:
        _note_left(notes, task)
    if task.published:
        _check_outcome(notes, task, said)
    elif said.saved:
        words = "the stream says that the result was saved, and it is not whole"
        notes.add("task_result_missing", words, file=task.path, task_id=task.task_id)
    return False


def _note_left(notes: Notes, task: TaskFacts) -> None:
    words = "the task stands in running/, and nobody works on it"
    notes.add("task_left_running", words, file=task.path, task_id=task.task_id)


def _check_state(notes: Notes, task: TaskFacts) -> None:
    severity = _severity(task)
    if task.state in (None, RUNNING) or not task.published or severity is None:
        return
    expected = STATES.get(severity, "normal")
    if task.state != expected:
        words = f"the task stands in {task.state}/, its issues say {expected}"
        notes.add("task_state", words, file=task.path, task_id=task.task_id)


def _severity(task: TaskFacts) -> str | None:
    """Return the highest severity of all attempts, None where one can't be told."""
    found = {attempt.severity for attempt in task.attempts}
    return None if None in found else next((name for name in SEVERITIES if name in found), "")


def _check_outcome(notes: Notes, task: TaskFacts, said: Task) -> None:
    about: Any = {"task_id": task.task_id}
    severity = _severity(task)
    if severity is not None and said.severity in (*SEVERITIES, "") and severity != said.severity:
        words = f"the highest severity is {severity or 'none'}, task_finished says {said.severity or 'none'}"
        notes.add("task_severity", words, file=task.path, **about)
    if task.category != said.category:
        words = f"category is {short(task.category)}, the stream says {short(said.category)}"
        notes.add("task_category", words, file=f"{task.path}/task.json", **about)
    stored = {attempt.number: attempt for attempt in task.attempts}
    for number, attempt in said.attempts.items():
        theirs = stored.get(number)
        if theirs is None:
            if attempt.finished:
                words = f"attempt {number} finished, and task.json does not list it"
                notes.add("attempt_result_missing", words, file=task.path, attempt=number, **about)
        else:
            _check_retries(notes, task, theirs, attempt.retries)


def _check_retries(notes: Notes, task: TaskFacts, attempt: AttemptFacts, retries: int) -> None:
    about: Any = {"task_id": task.task_id, "attempt": attempt.number}
    if attempt.retry_count != retries:
        words = f"retry_count is {attempt.retry_count}, the stream has {retries} retries"
        notes.add("retry_count", words, file=f"{attempt.path}/result.json", **about)
    if len(attempt.retries) != retries:
        words = f"retries/ has {len(attempt.retries)} files, the stream {retries} retries"
        notes.add("retry_files", words, file=attempt.path, **about)


def _check_unknown(notes: Notes, unknown: list[TaskFacts], watched: State) -> None:
    """Published tasks of which the stream knows nothing: they must be the reused ones."""
    if not watched.reuse_known or len(unknown) == watched.reused_tasks:
        return
    if watched.reused_tasks == 0:
        for task in unknown:
            words = "the task has a result, and the stream knows nothing of it"
            notes.add("task_unknown", words, file=task.path, task_id=task.task_id)
    else:
        words = f"{len(unknown)} tasks have results without events, {watched.reused_tasks} were reused"
        notes.add("reused_tasks_differ", words, file="details")


def _check_missing(notes: Notes, places: dict[str, TaskFacts], watched: State, found: bool) -> None:
    if not found:
        if watched.evaluates and (watched.finished or watched.reused_tasks):
            notes.add("details_missing", "tasks finished, and there are no task details", file="details")
        return
    for task_id, said in watched.finished.items():
        if task_id not in places and said.saved:
            words = "the stream says that the result was saved, and it is not there"
            notes.add("task_result_missing", words, file="details", task_id=task_id)
