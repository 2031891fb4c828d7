"""Writing task results: attempts, retries, and the publication of a task, each safe against a crash at any point.

    store = TaskStore(run_dir, append=recorder.append)
    folder = store.begin_attempt("arith-001", 1)      # earlier outputs of this attempt go to retries/
    store.save_retry("arith-001", 1, RetryDetail(...), discarded)
    store.publish("arith-001", category=None, ground_truth="7", attempt_plan={"k": 1, "strategy": "avg"},
                  attempts={1: AttemptResult(status="completed", metrics={"correct": True})})

A task is worked on below `details/running`. Publishing writes and syncs the attempts, then `task.json`, then an
intent, turns the artifact references, and moves the folder to its state by one rename: a reader sees the task
unpublished or whole. A task that is published already is first built anew beside itself and swapped in, old or new.
`recover` finishes what an intent promised and undoes the rest. `partial_saved` is appended when all of it is durable.
One lock per task: other tasks cost nothing.
"""

import functools
import os
import secrets as random_names
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from msgspec import Struct

from eventstore.errors import DamagedError, OutputError, RefusedError
from eventstore.format.codec import dump_pretty
from eventstore.format.events import Json, PartialSaved
from eventstore.run.json_files import read_members, read_raw_members
from eventstore.run.names import (
    ARTIFACTS_NAME,
    CHECKPOINT_FILE,
    DETAILS_NAME,
    OLDER_TASK_SCHEMA,
    RESULT_FILE,
    RETRIES_NAME,
    RUNNING,
    TASK_FILE,
    TASK_SCHEMA,
    TASK_STATES,
    attempt_directory_name,
    check_task_id,
    state_of,
    task_directory_name,
)
from eventstore.stream.atomic_file import replace_file
from eventstore.stream.filesystem import REAL, FileSystem

from .fingerprints import UNLIMITED, Budget
from .intents import INTENT_PREFIX, Intent, loose_ends, read_intents, swap_in, write_intent
from .references import point_at, point_at_archive, records_of
from .result import is_persisted_shape, persisted_shape
from .schema import (
    AttemptResult,
    RenderedResult,
    RetryDetail,
    check_attempt_plan,
    check_result,
    render_members,
    render_result,
    render_retry,
)
from .task_dirs import TaskDir, find_task, task_dirs
from .tree_copy import TreeCopy, remove_tree

__all__ = ["INTENT_PREFIX", "AnyResult", "Append", "AttemptResult", "Recovered", "RetryDetail", "TaskStore"]

Append = Callable[[PartialSaved], Any]
AnyResult: TypeAlias = AttemptResult | RenderedResult
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _in_words(method: Callable[Concatenate["TaskStore", _P], _R]) -> Callable[Concatenate["TaskStore", _P], _R]:
    """Turn what the system refuses into an OutputError with the path."""

    @functools.wraps(method)
    def call(self: "TaskStore", /, *arguments: _P.args, **names: _P.kwargs) -> _R:
        try:
            return method(self, *arguments, **names)
        except OSError as error:
            place = error.filename2 or error.filename or self.run_dir
            raise OutputError(f"{place}: can't be written: {error.strerror}", place) from None

    return call


class Recovered(Struct, frozen=True):
    """What `recover` did: task ids that were published or saved late, and paths of leftovers that it removed."""

    finished: list[str]
    events: list[str]
    removed: list[str]


class TaskStore:
    """The writer of one run's task results; may be shared by threads.

    `append` gets the `partial_saved` event of each publication. `secrets` are literal values to redact. With
    `durable=False` nothing is synced (tests, scratch runs).
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        append: Append | None = None,
        secrets: Sequence[str] = (),
        durable: bool = True,
        files: FileSystem = REAL,
    ) -> None:
        self.run_dir, self._append = run_dir, append
        self._secrets, self._durable, self._files = tuple(secrets), durable, files
        self._locks = [threading.RLock() for _ in range(64)]

    # -- while a task runs

    @_in_words
    def begin_attempt(self, task_id: str, attempt: int, *, category: str | None = None) -> Path:
        """Make and return the folder of an attempt that is about to run. A published task goes back to running.

        Outputs of an earlier execution (result, checkpoint, artifacts) are moved to `retries/<random>/` in one step.
        """
        name = attempt_directory_name(attempt)
        with self._lock(task_id):
            task = self._opened(task_id)
            folder = self._list_attempt(task, attempt) / name
            earlier = [path for path in (folder / ARTIFACTS_NAME, folder / RESULT_FILE, folder / CHECKPOINT_FILE)]
            self._archive(folder, [path for path in earlier if os.path.lexists(path)])
            return folder

    @_in_words
    def attempt_dir(self, task_id: str, attempt: int) -> Path:
        """Return the folder of an attempt, made and listed in `task.json` where it is missing; nothing is moved."""
        with self._lock(task_id):
            task = find_task(self.run_dir, task_id)
            if task is None or task.state == RUNNING:
                task = self._opened(task_id)
            _check_usable(task, task_id)
            listed = task.attempts.get(attempt)
            if task.state != RUNNING and (listed is None or not listed.listed):
                raise RefusedError(f"{task.path}: is published; begin_attempt opens it again", task.path)
            return self._list_attempt(task, attempt) / attempt_directory_name(attempt)

    @_in_words
    def save_retry(
        self, task_id: str, attempt: int, detail: RetryDetail, discarded: Json, *, category: str | None = None
    ) -> Path:
        """Keep a discarded result as `retries/<task>.attempt<n>.retry<r>.<stage>.json`; the path."""
        content = render_retry(task_id, category, attempt, detail, discarded, self._secrets)
        stage = detail.stage.replace("/", "_").replace(":", "_").replace("\0", "_")[:60] or "unknown"
        with self._lock(task_id):
            folder = self.attempt_dir(task_id, attempt) / RETRIES_NAME
            self._make_folder(folder)
            name = f"{folder.parent.parent.name}.attempt{attempt}.retry{detail.retry}.{stage}.json"
            self._write(folder / name, content)
            return folder / name

    @_in_words
    def save_result(self, task_id: str, attempt: int, result: AnyResult) -> Path:
        """Keep one attempt's result while its task still runs; the path."""
        check_result(result)
        with self._lock(task_id):
            task = find_task(self.run_dir, task_id)
            if task is not None and task.state != RUNNING:
                raise RefusedError(f"{task.path}: is published; publish replaces it whole", task.path)
            path = self.attempt_dir(task_id, attempt) / RESULT_FILE
            self._write(path, render_result(result, self._secrets))
            return path

    # -- publication

    @_in_words
    def publish(
        self,
        task_id: str,
        *,
        category: str | None,
        ground_truth: Any,
        attempt_plan: Json,
        attempts: Mapping[int, AnyResult],
        append: bool = True,
    ) -> Path:
        """Publish a task's whole result and append `partial_saved`; the path of its folder.

        Attempts that are not given keep the result that stands on disk. Raises UsageError for what the schema doesn't
        allow, OutputError for what can't be written; the task then stands as it stood, or under `running`.
        """
        check_task_id(task_id)
        for number, result in attempts.items():
            attempt_directory_name(number)
            check_result(result)
        shared = {
            "category": category,
            "ground_truth": ground_truth,
            "attempt_plan": check_attempt_plan(attempt_plan, list(attempts)),
        }
        with self._lock(task_id):
            task = find_task(self.run_dir, task_id)
            if task is not None and task.state != RUNNING:
                folder = self._republish(task, task_id, shared, attempts)
            else:
                folder = self._first_publish(task_id, shared, attempts)
            if append:
                self._announce(task_id, category)
            return folder

    def _first_publish(self, task_id: str, shared: Json, attempts: Mapping[int, AnyResult]) -> Path:
        task = self._opened(task_id)
        self._fill(task, task_id, shared, attempts)
        return self._move(task.path, self._target_state(task.path, attempts))

    def _republish(self, task: TaskDir, task_id: str, shared: Json, attempts: Mapping[int, AnyResult]) -> Path:
        """Build the new task beside the old one, then swap: a reader sees one or the other, never a mixture."""
        _check_usable(task, task_id)
        staging = self._details / f"{INTENT_PREFIX}{random_names.token_hex(8)}"
        self._make_folder(staging)
        new = staging / task.path.name
        try:
            TreeCopy(Budget(UNLIMITED), link=True, durable=self._durable).copy(task.path, new)
            self._fill(TaskDir(new, RUNNING, self.run_dir), task_id, shared, attempts)
            state = self._target_state(new, attempts)
            target = self._details / state / new.name
            point_at(new, self._relative(target), durable=self._durable, files=self._files)
        except BaseException:
            remove_tree(staging)
            raise
        self._make_folder(target.parent)
        intent = Intent(new.name, state, staging.name, new.stat().st_ino, task.state)
        path = self._write_intent(intent)
        swap_in(self._details, intent, files=self._files)
        self._files.unlink(path)
        return target

    def _fill(self, task: TaskDir, task_id: str, shared: Json, attempts: Mapping[int, AnyResult]) -> None:
        """Attempts first, `task.json` last: shared fields in it say that every listed attempt is there."""
        index = dict(self._index(task))
        for number, result in sorted(attempts.items()):
            name = attempt_directory_name(number)
            self._make_folder(task.path / name)
            self._write(task.path / name / RESULT_FILE, render_result(result, self._secrets))
            index[str(number)] = name
        index = dict(sorted(index.items(), key=lambda item: int(item[0])))
        for key, name in index.items():
            if int(key) not in attempts:
                self._settle(task.path / name)
        self._write_index(task.path, task_id, index, shared)

    def _settle(self, attempt: Path) -> None:
        """Bring an attempt that is not handed in to the shape of a published one."""
        path = attempt / RESULT_FILE
        if not os.path.lexists(path):
            self._make_folder(attempt)
            self._write(path, dump_pretty({"retry_count": 0}, sort_keys=False))
        elif (members := read_raw_members(path)).keys() != {"retry_count"} and not is_persisted_shape(members):
            self._write(path, render_members(persisted_shape(members)))

    def _target_state(self, folder: Path, given: Mapping[int, AnyResult]) -> str:
        severities = {severity for result in given.values() for severity in result.severities}
        for attempt in TaskDir(folder, RUNNING, self.run_dir).attempts.values():
            if attempt.number not in given:
                result = attempt.read_result()
                if result.problem is not None:
                    raise DamagedError(f"{attempt.path / RESULT_FILE}: {result.problem}", attempt.path)
                severities |= {issue.severity for issue in result.issues}
        return state_of(severities)

    @_in_words
    def move(self, task_id: str, state: str) -> Path:
        """Move a task to another state, its artifact references with it; nothing else in it is parsed."""
        if state not in TASK_STATES:
            raise RefusedError(f"{state!r:.80} is no state of a task")
        with self._lock(task_id):
            task = find_task(self.run_dir, task_id)
            if task is None:
                raise RefusedError(f"{self.run_dir}: holds no task {task_id!r:.200}", self.run_dir)
            return task.path if task.state == state else self._move(task.path, state)

    def _move(self, source: Path, state: str) -> Path:
        """One rename, references first. Back to `running` needs no intent: recovery turns references by the place."""
        target = self._details / state / source.name
        if os.path.lexists(target):
            raise OutputError(f"{target}: is there already", target)
        self._make_folder(target.parent)
        intent = None if state == RUNNING else self._write_intent(Intent(source.name, state))
        point_at(source, self._relative(target), durable=self._durable, files=self._files)
        self._files.replace(source, target)
        self._sync(target.parent)
        self._sync(source.parent)
        if intent is not None:
            self._files.unlink(intent)
        return target

    # -- recovery

    @_in_words
    def recover(self, unsaved: Iterable[str] = (), *, thorough: bool = True) -> Recovered:
        """Finish or undo what a crash left. Nobody else may be writing to the run.

        `unsaved`: ids of tasks that the stream has started and no `partial_saved` for; those that turn out to be
        published get the event that the crash left out. Without `thorough` only those and the tasks under `running` are
        looked into, so that the cost does not grow with what has long been published.
        """
        unsaved = list(unsaved)
        removed: list[str] = []
        finished = [self._finish(path, intent) for path, intent in read_intents(self._details)]
        for path in loose_ends(self._details):
            removed.append(self._relative(path))
            remove_tree(path)
        for task in task_dirs(self.run_dir) if thorough else unsettled(self.run_dir, unsaved):
            self._tidy(task, removed)
        events = []
        for task_id in unsaved:
            published = find_task(self.run_dir, task_id)
            if published is not None and published.published:
                self._announce(task_id, published.category)
                events.append(task_id)
        by_name = {task.path.name: task.task_id for task in task_dirs(self.run_dir)} if finished else {}
        return Recovered([by_name.get(name) or name for name in finished], events, removed)

    def _finish(self, path: Path, intent: Intent) -> str:
        """Do what an intent promised; the name of the task's folder."""
        target = self._details / intent.state / intent.name
        self._make_folder(target.parent)
        if intent.staging is not None:
            swap_in(self._details, intent, files=self._files)
        elif not target.exists():
            sources = (self._details / state / intent.name for state in TASK_STATES)
            source = next((folder for folder in sources if folder.is_dir()), target)
            if source != target:
                self._move(source, intent.state)
        path.unlink(missing_ok=True)
        return intent.name

    def _tidy(self, task: TaskDir, removed: list[str]) -> None:
        for path in task.leftovers:
            if path.parent.name == RETRIES_NAME and path.is_dir():
                self._finish_archive(path)
            else:
                removed.append(self._relative(path))
                remove_tree(path)
        point_at(task.path, task.relative, durable=self._durable, files=self._files)

    # -- parts

    @property
    def _details(self) -> Path:
        return self.run_dir / DETAILS_NAME

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.run_dir).as_posix()

    def _lock(self, task_id: str) -> threading.RLock:
        check_task_id(task_id)
        return self._locks[hash(task_id) % len(self._locks)]

    def _opened(self, task_id: str) -> TaskDir:
        """Return the task's folder under `running`, made, or moved back there, where that is needed."""
        task = find_task(self.run_dir, task_id)
        if task is None:
            path = self._details / RUNNING / task_directory_name(task_id)
            self._make_folder(path)
            self._write_index(path, task_id, {}, {})
            task = TaskDir(path, RUNNING, self.run_dir)
        elif task.state != RUNNING:
            _check_usable(task, task_id)
            task = TaskDir(self._move(task.path, RUNNING), RUNNING, self.run_dir)
        elif not os.path.lexists(task.path / TASK_FILE):  # a crash came between the folder and its index
            self._write_index(task.path, task_id, {}, {})
            task = TaskDir(task.path, RUNNING, self.run_dir)
        _check_usable(task, task_id)
        return task

    def _list_attempt(self, task: TaskDir, attempt: int) -> Path:
        name = attempt_directory_name(attempt)
        if str(attempt) not in self._index(task):
            index = {**self._index(task), str(attempt): name}
            self._write_index(task.path, str(task.task_id), dict(sorted(index.items(), key=lambda item: int(item[0]))))
        self._make_folder(task.path / name)
        return task.path

    def _index(self, task: TaskDir) -> dict[str, str]:
        return {str(number): f"attempt-{number}" for number, attempt in task.attempts.items() if attempt.listed}

    def _write_index(self, folder: Path, task_id: str, index: Json, shared: Json | None = None) -> None:
        stored = read_members(folder / TASK_FILE, None).values if shared is None else {}
        kept = {name: value for name, value in stored.items() if name not in ("schema_version", "task_id", "attempts")}
        members = {"schema_version": TASK_SCHEMA, "task_id": task_id, "attempts": index, **(shared or kept)}
        self._write(folder / TASK_FILE, dump_pretty(members, sort_keys=False))

    def _archive(self, folder: Path, earlier: list[Path]) -> None:
        if not earlier:
            return
        token = random_names.token_hex(16)
        staging = folder / RETRIES_NAME / f".tmp.{token}"
        self._make_folder(staging)
        for path in earlier:
            self._files.replace(path, staging / path.name)
        self._finish_archive(staging)

    def _finish_archive(self, staging: Path) -> None:
        """Give an archive its final name, its references first; also what recovery does with one that a crash left."""
        token = staging.name.removeprefix(".tmp.")
        folder = staging.parent.parent
        records = [path for path in staging.iterdir() if path.suffix == ".json"]
        diagnostics = [path for path in records_of(folder.parent) if path.parent == staging.parent]
        point_at_archive(folder, token, records + diagnostics, durable=self._durable, files=self._files)
        self._files.replace(staging, staging.with_name(token))
        self._sync(staging.parent)

    def _write_intent(self, intent: Intent) -> Path:
        return write_intent(self._details, intent, durable=self._durable, files=self._files)

    def _announce(self, task_id: str, category: str | None) -> None:
        if self._append is not None:
            self._append(PartialSaved(task_id=task_id, category=category))

    def _write(self, path: Path, content: bytes) -> None:
        if path.is_symlink():
            raise RefusedError(f"{path}: is a symbolic link", path)
        replace_file(path, content, durable=self._durable, files=self._files)

    def _make_folder(self, folder: Path) -> None:
        if any(path.is_symlink() for path in (folder, *folder.parents) if self.run_dir in path.parents):
            raise RefusedError(f"{folder}: a symbolic link stands on the way", folder)
        try:
            if self._durable:
                self._files.make_folders(folder)  # syncs the names it makes
            else:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{folder}: can't be made: {error.strerror}", folder) from None

    def _sync(self, folder: Path) -> None:
        if self._durable:
            self._files.sync_folder(folder)


def unsettled(run_dir: Path, unsaved: Iterable[str]) -> list[TaskDir]:
    """The tasks that a crash can have left half done: those under `running`, and those that were not told as saved."""
    running = {task.path: task for task in task_dirs(run_dir) if task.state == RUNNING}
    started = (find_task(run_dir, task_id) for task_id in unsaved)
    return list((running | {task.path: task for task in started if task is not None}).values())


def _check_usable(task: TaskDir, task_id: str) -> None:
    if task.problem is not None or task.task_id != task_id:
        raise DamagedError(f"{task.path}: {task.problem or 'holds another task'}", task.path)
    if task.schema == OLDER_TASK_SCHEMA:
        raise RefusedError(f"{task.path}: is of an older schema, which is read and never rewritten", task.path)
