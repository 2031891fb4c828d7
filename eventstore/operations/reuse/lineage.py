"""Where a run's results came from, over any number of reuses.

A run names its source in `run_info.json.reused_from`. The recorded path is not followed: the source is looked for by
its id beside the run, then below a folder that the caller names. Of each attempt two things are told: in which run the
agent worked, and in which its work was scored.
"""

import os
from itertools import takewhile
from pathlib import Path, PurePosixPath

from msgspec import Struct

from eventstore.errors import UsageError
from eventstore.results.checkpoint_store import read_checkpoint
from eventstore.results.task_dirs import AttemptDir, TaskDir, find_task, task_dirs
from eventstore.run.directory import RUN_INFO_NAME, find_runs, is_run_dir, open_run, read_json_file
from eventstore.run.names import CHECKPOINT_FILE
from eventstore.run.request_record import section

MAX_GENERATIONS = 100


class Generation(Struct, frozen=True):
    """One run of a lineage, the newest first; `path` is None, with the reason, where it can't be found."""

    run_id: str
    path: Path | None
    problem: str | None = None


class AttemptOrigin(Struct, frozen=True):
    """Where one attempt's result came from: run ids, and the runs it went through, from this one on."""

    attempt: int
    agent_run_id: str
    scored_run_id: str
    through: list[str]


class TaskOrigin(Struct, frozen=True):
    task_id: str
    attempts: list[AttemptOrigin]


class Lineage(Struct, frozen=True):
    """A run's line of sources and the origin of every result in it."""

    generations: list[Generation]
    tasks: list[TaskOrigin]


def lineage_of(path: str | os.PathLike[str], root: Path | None = None) -> Lineage:
    """The lineage of a run; sources are looked for beside it, then below `root`. Raises InputError if it is no run."""
    generations = _generations(open_run(path), root)
    tasks = []
    for task in task_dirs(open_run(path)):
        if task.task_id is not None:
            attempts = (attempt for attempt in task.attempts.values() if attempt.has_result)
            tasks.append(TaskOrigin(task.task_id, [_origin(task, attempt, generations) for attempt in attempts]))
    return Lineage(generations, sorted((task for task in tasks if task.attempts), key=lambda task: task.task_id))


def _generations(run_dir: Path, root: Path | None) -> list[Generation]:
    found: list[Generation] = []
    seen: set[Path] = set()
    while len(found) < MAX_GENERATIONS:
        info = read_json_file(run_dir / RUN_INFO_NAME).members or {}
        run_id = info.get("run_id")
        found.append(Generation(run_id if isinstance(run_id, str) else run_dir.name, run_dir))
        seen.add(run_dir.resolve())
        source = section(info, "reused_from")
        if not source:
            break
        name, recorded = str(source.get("run_id") or ""), str(source.get("path") or "")
        name = name or PurePosixPath(recorded).name
        next_dir = _find(run_dir, name, recorded, root)
        if next_dir is None:
            found.append(Generation(name, None, "there is no such run beside it; its recorded path is not followed"))
            break
        if next_dir.resolve() in seen:
            found.append(Generation(name, None, "the line of sources runs in a circle"))
            break
        run_dir = next_dir
    return found


def _find(run_dir: Path, name: str, recorded: str, root: Path | None) -> Path | None:
    folder_names = {name, PurePosixPath(recorded.replace("\\", "/")).name} - {"", ".", ".."}
    for folder_name in sorted(folder_names):
        sibling = run_dir.parent / folder_name
        if "/" not in folder_name and "\0" not in folder_name and is_run_dir(sibling) and _is_called(sibling, name):
            return sibling
    if root is not None:
        named = [run.path for run in find_runs(root) if _is_called(run.path, name)]
        return max(named, key=lambda path: _shared_ending(path, recorded), default=None)
    return None


def _shared_ending(path: Path, recorded: str) -> int:
    """Return how many of their last folders two paths share.

    Ids are not unique, and a history that was moved keeps the names of its groups.
    """
    ours, theirs = path.resolve().parts, PurePosixPath(recorded.replace("\\", "/")).parts
    pairs = zip(reversed(ours), reversed(theirs), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _is_called(run_dir: Path, run_id: str) -> bool:
    members = read_json_file(run_dir / RUN_INFO_NAME).members or {}
    return members.get("run_id") == run_id


def _origin(task: TaskDir, attempt: AttemptDir, generations: list[Generation]) -> AttemptOrigin:
    through: list[str] = []
    for index, generation in enumerate(generations):
        through.append(generation.run_id)
        found = attempt if index == 0 else _same_attempt(generation.path, task.task_id or "", attempt.number)
        if found is None or not _is_reused(found):
            agent = generation.run_id if found is None else _agent_run(found) or generation.run_id
            return AttemptOrigin(attempt.number, agent, generation.run_id, through)
    last = generations[-1].run_id
    return AttemptOrigin(attempt.number, last, last, through)


def _same_attempt(run_dir: Path | None, task_id: str, number: int) -> AttemptDir | None:
    try:
        task = find_task(run_dir, task_id) if run_dir is not None else None
    except UsageError:
        return None
    return task.attempts.get(number) if task is not None else None


def _is_reused(attempt: AttemptDir) -> bool:
    return bool(section(attempt.read_result("artifacts").members, "artifacts").get("reuse_history"))


def _agent_run(attempt: AttemptDir) -> str | None:
    evaluation = read_checkpoint(attempt.path / CHECKPOINT_FILE).evaluation if attempt.has_checkpoint else None
    run_id = evaluation.source_run_id if evaluation is not None else None
    return run_id if isinstance(run_id, str) and run_id else None
