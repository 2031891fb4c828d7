"""Task results of a run directory, read lazily and without trust.

    for task in task_dirs(run_dir):          # details/<state>/<task>/ (layout v3) and details/<task>/ (layout v2)
        task.task_id, task.state, task.problem, task.name_matches, task.published
        for attempt in task.attempts.values():
            attempt.read_result()             # status, metrics, issues, retry_count; never the trajectory
            attempt.read_result("final_answer", "meta").members
            attempt.retry_files, attempt.archives, attempt.leftovers
            attempt.read_retries()
    find_task(run_dir, "arith-001")           # by id, through its directory name
    stored_severities(run_dir)                # task id -> highest severity, of published tasks
    find_retry_detail(run_dir, task_id, path) # where a retry's diagnostics stand now

Also here: `Result`, `Issue`, `Retry` (from `results`), `read_request` (from `stored_request`), `task_directory_name`.
Evaluation checkpoints are read by `checkpoints.read_checkpoint`. Whatever can't be read becomes a problem in words,
never an exception, and no link is followed.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from eventstore.errors import UsageError
from eventstore.format.events import Json
from eventstore.run.json_files import read_members
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
    attempt_number,
    is_leftover,
    task_directory_name,
)
from eventstore.run.request_record import StoredRequest, read_request

from .result import Issue, Result, Retry, highest_severity, read_result, read_retry, shape_faults

__all__ = [
    "AttemptDir",
    "Issue",
    "Result",
    "Retry",
    "StoredRequest",
    "TaskDir",
    "find_retry_detail",
    "find_task",
    "highest_severity",
    "read_request",
    "stored_severities",
    "task_directory_name",
    "task_dirs",
]

OnProblem = Callable[[str, str], None]
_SHARED = ("category", "ground_truth", "attempt_plan")
MAX_TASK_FILE_BYTES = 256 * 1024 * 1024


class _Listing(Struct, frozen=True):
    """The names in a folder by what they are; empty, with the problem, where it can't be listed."""

    folders: list[str] = []
    files: list[str] = []
    others: list[str] = []
    problem: str | None = None


class AttemptDir:
    """One `attempt-<n>` folder. `listed`: task.json names it. `exists`: the folder is there. `older`: of task.v2."""

    def __init__(self, path: Path, number: int, listed: bool, exists: bool, older: bool) -> None:
        self.path, self.number, self.listed, self.exists = path, number, listed, exists
        self.older = older

    @cached_property
    def _listing(self) -> _Listing:
        return _list(self.path) if self.exists else _Listing()

    @cached_property
    def _retries(self) -> _Listing:
        return _list(self.path / RETRIES_NAME) if RETRIES_NAME in self._listing.folders else _Listing()

    @property
    def has_result(self) -> bool:
        return RESULT_FILE in self._listing.files

    @property
    def has_checkpoint(self) -> bool:
        return CHECKPOINT_FILE in self._listing.files

    @property
    def has_artifacts(self) -> bool:
        """True where an `artifacts/` folder is there (an empty one counts)."""
        return ARTIFACTS_NAME in self._listing.folders

    @property
    def retry_files(self) -> list[Path]:
        """Diagnostics of discarded results, by name."""
        names = (name for name in self._retries.files if name.endswith(".json") and not is_leftover(name))
        return [self.path / RETRIES_NAME / name for name in names]

    @property
    def archives(self) -> list[Path]:
        """Folders with the result, checkpoint and artifacts of an earlier execution of this attempt."""
        return [self.path / RETRIES_NAME / name for name in self._retries.folders if not is_leftover(name)]

    @property
    def leftovers(self) -> list[Path]:
        """Temporary files and folders that a crash left."""
        mine = [self.path / name for name in self._listing.folders + self._listing.files if is_leftover(name)]
        theirs = [name for name in self._retries.folders + self._retries.files if is_leftover(name)]
        return mine + [self.path / RETRIES_NAME / name for name in theirs]

    @property
    def problems(self) -> list[str]:
        """What is wrong with the folder itself, in words."""
        found = [f"{self.path.name} {self._listing.problem}"] if self._listing.problem else []
        found += [f"{self.path.name}/{name} is a link or a special file" for name in self._listing.others]
        return found if self.listed else [*found, f"{self.path.name} is not listed in {TASK_FILE}"]

    def read_result(self, *members: str) -> Result:
        """`result.json`, read now; with the further `members` of it (`final_answer`, `meta`, …) that are named."""
        return read_result(self.path / RESULT_FILE, *members, older=self.older)

    def result_faults(self, result: Result) -> list[str]:
        """Return what keeps AgentCompass from loading `result`, read before, as that of a finished attempt.

        Empty for a result that holds only a retry count: the task may have others.
        """
        if result.problem is not None:
            return [result.problem]
        if result.faults or result.is_empty:
            return result.faults
        return shape_faults(self.path / RESULT_FILE, older=self.older)

    def read_retries(self) -> list[Retry]:
        """Return the diagnostics of its discarded results, read now."""
        return [read_retry(path) for path in self.retry_files]


class TaskDir:
    """One task's directory with what its `task.json` says, read when it is first asked for.

    `state` is running, normal, error or fatal, or None in layout v2. `relative` is the path below the run directory.
    """

    def __init__(self, path: Path, state: str | None, run_dir: Path) -> None:
        self.path, self.state, self.run_dir = path, state, run_dir
        self.relative = path.relative_to(run_dir).as_posix()

    @cached_property
    def _file(self) -> Any:
        return read_members(self.path / TASK_FILE, None, MAX_TASK_FILE_BYTES)

    @cached_property
    def _listing(self) -> _Listing:
        return _list(self.path)

    @property
    def members(self) -> Json:
        """What `task.json` holds; empty where it can't be read."""
        members: Json = self._file.values
        return members

    @property
    def problem(self) -> str | None:
        """Why `task.json` can't be used, in words; None where it can."""
        if not self._file.exists:
            return f"{TASK_FILE} is missing"
        if self._file.problem is not None:
            return f"{TASK_FILE} {self._file.problem}"
        if self.schema not in (TASK_SCHEMA, OLDER_TASK_SCHEMA):
            return f"{TASK_FILE} has schema {str(self.schema)[:80]!r}"
        if self.task_id is None:
            return f"{TASK_FILE} has no task_id"
        return None if isinstance(self.members.get("attempts"), dict) else f"{TASK_FILE} has no attempts object"

    @property
    def is_begun(self) -> bool:
        """True where the task was only begun: it is under way, and there is neither a task.json nor a result."""
        unfinished = self.state == RUNNING and not self._file.exists
        return unfinished and not any(attempt.has_result for attempt in self.attempts.values())

    @property
    def schema(self) -> Any:
        return self.members.get("schema_version")

    @property
    def task_id(self) -> str | None:
        task_id = self.members.get("task_id")
        return task_id if isinstance(task_id, str) else None

    @property
    def category(self) -> Any:
        return self.members.get("category")

    @property
    def ground_truth(self) -> Any:
        return self.members.get("ground_truth")

    @property
    def attempt_plan(self) -> Json:
        """{k, strategy} as stored, or an empty object."""
        plan = self.members.get("attempt_plan")
        return plan if isinstance(plan, dict) else {}

    @property
    def name_matches(self) -> bool | None:
        """True where the directory's name is that of its task id; None where the id is not known."""
        if self.task_id is None:
            return None
        try:
            return self.path.name == task_directory_name(self.task_id)
        except UsageError:
            return False

    @cached_property
    def attempts(self) -> dict[int, AttemptDir]:
        """Attempts by number: those that `task.json` lists, and folders that it does not."""
        listed = {int(number) for number in self._index if _is_attempt_number(number)}
        present = {number for name in self._listing.folders if (number := attempt_number(name)) is not None}
        older = self.schema == OLDER_TASK_SCHEMA
        return {
            number: AttemptDir(self.path / f"attempt-{number}", number, number in listed, number in present, older)
            for number in sorted(listed | present)
        }

    @property
    def _index(self) -> Json:
        index = self.members.get("attempts")
        return index if isinstance(index, dict) else {}

    @property
    def published(self) -> bool:
        """True where it holds a whole result: shared fields, every listed attempt's result, and not under `running`."""
        return (
            self.problem is None
            and self.state != RUNNING
            and all(name in self.members for name in _SHARED)
            and all(attempt.has_result for attempt in self.attempts.values() if attempt.listed)
        )

    @property
    def index_problems(self) -> list[str]:
        """Messages about entries of `task.json`'s attempts with which AgentCompass refuses the whole task."""
        return [
            f"{TASK_FILE} maps attempt {number[:40]!r} to {str(name)[:80]!r}"
            for number, name in self._index.items()
            if not _is_attempt_number(number) or name != f"attempt-{number}"
        ]

    def unfinished_reason(self, results: Mapping[int, Result]) -> str | None:
        """Return why its results, read before, are not those of a finished task; None where they are.

        Finished is what AgentCompass 1.0.1 loads: published, an index without invalid entries, at least one attempt
        with a result, and no result that breaks the schema.
        """
        if not self.published:
            return self.problem or "it was not finished"
        if self.index_problems:
            return self.index_problems[0]
        listed = {number: results[number] for number, attempt in self.attempts.items() if attempt.listed}
        if all(result.is_empty for result in listed.values()):
            return "it holds no result of any attempt"
        for number, result in listed.items():
            faults = self.attempts[number].result_faults(result)
            if faults:
                return f"attempt {number}: its result {'' if result.problem else 'breaks the schema: '}{faults[0]}"
        return None

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong with the directory's shape, in words; the attempts' problems included."""
        found = [self.problem] if self.problem else []
        if self._listing.problem:
            found.append(self._listing.problem)
        found += [f"{name} is a link or a special file" for name in self._listing.others]
        shared = [name for name in _SHARED if name in self.members]
        if shared and len(shared) < len(_SHARED):
            found.append(f"{TASK_FILE} has {', '.join(shared)} only")
        found += self.index_problems
        for attempt in self.attempts.values():
            found += attempt.problems
            if not attempt.exists and self.state != RUNNING:  # an unfinished task lists attempts before they begin
                found.append(f"{attempt.path.name} is listed in {TASK_FILE} and missing")
        return found

    @property
    def leftovers(self) -> list[Path]:
        """Temporary files and folders that a crash left, anywhere in the task's directory."""
        mine = [self.path / name for name in self._listing.folders + self._listing.files if is_leftover(name)]
        return mine + [path for attempt in self.attempts.values() for path in attempt.leftovers]

    @property
    def severity(self) -> str:
        """The highest severity of any attempt, "" for none; "unknown" where an older failure is not classified."""
        results = [attempt.read_result() for attempt in self.attempts.values()]
        if not all(result.classified for result in results):
            return "unknown"
        return highest_severity([issue for result in results for issue in result.issues])

    @property
    def retry_count(self) -> int:
        """Retries of all attempts."""
        return sum(attempt.read_result().retry_count for attempt in self.attempts.values())


def task_dirs(run_dir: Path, on_problem: OnProblem | None = None) -> Iterator[TaskDir]:
    """Yield every task directory of a run: by state (running, normal, error, fatal), then layout v2, each by name.

    A task that stands in two states comes twice. Links, files and folders that don't belong to a task, and what can't
    be read, are reported to `on_problem(path, message)`.
    """
    tell = on_problem or (lambda path, words: None)
    details = run_dir / DETAILS_NAME
    if not os.path.lexists(details):
        return
    found = _listed(details, tell)
    for state in TASK_STATES:
        if state in found.folders and not os.path.lexists(details / state / TASK_FILE):
            for name in _listed(details / state, tell).folders:
                yield from _task_dir(details / state / name, state, run_dir, tell)
    for name in found.folders:
        if name not in TASK_STATES or os.path.lexists(details / name / TASK_FILE):
            yield from _task_dir(details / name, None, run_dir, tell)


def _task_dir(path: Path, state: str | None, run_dir: Path, tell: OnProblem) -> Iterator[TaskDir]:
    if is_leftover(path.name):
        tell(str(path), "is a leftover of a crash")
    else:
        yield TaskDir(path, state, run_dir)


def _listed(folder: Path, tell: OnProblem) -> _Listing:
    found = _list(folder)
    if found.problem:
        tell(str(folder), found.problem)
    for name in found.others:
        tell(str(folder / name), "is a link or a special file, and is not looked into")
    for name in found.files:
        words = "is a leftover of a crash" if is_leftover(name) else "is a file where only tasks belong"
        tell(str(folder / name), words)
    return found


def find_task(run_dir: Path, task_id: str) -> TaskDir | None:
    """Return the directory of a task, found by its name; the states are asked in their order, layout v2 last.

    Raises UsageError for an id that can't be one.
    """
    name = task_directory_name(task_id)
    for state in (*TASK_STATES, None):
        path = run_dir / DETAILS_NAME / (f"{state}/{name}" if state else name)
        if path.is_dir() and not path.is_symlink():
            return TaskDir(path, state, run_dir)
    return None


def stored_severities(run_dir: Path) -> dict[str, str]:
    """The highest issue severity of every published task ("" for none, "unknown" for an unclassified older failure)."""
    return {task.task_id: task.severity for task in task_dirs(run_dir) if task.published and task.task_id is not None}


def find_retry_detail(run_dir: Path, task_id: str, recorded: str) -> Path | None:
    """Where the diagnostics file of an `attempt_retry` stands now: its recorded path dangles once the task has moved.

    Only the file's name is used; it is looked for below the task's present directory.
    """
    name = PurePosixPath(recorded.replace("\\", "/")).name
    try:
        task = find_task(run_dir, task_id)
    except UsageError:
        return None
    attempts = task.attempts.values() if task else ()
    return next((path for attempt in attempts for path in attempt.retry_files if path.name == name), None)


def _list(folder: Path) -> _Listing:
    folders: list[str] = []
    files: list[str] = []
    others: list[str] = []
    try:
        if folder.is_symlink():
            return _Listing(problem="is a symbolic link")
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
                (folders if is_folder else files if is_file else others).append(entry.name)
    except OSError as error:
        return _Listing(problem=f"can't be read: {error.strerror}")
    return _Listing(sorted(folders), sorted(files), sorted(others))


def _is_attempt_number(text: str) -> bool:
    return attempt_number(f"attempt-{text}") is not None
