"""After a crash: what it left half done among task results is finished or undone, and the stream is told.

    pending_results(run_dir)                # in words; changes nothing
    recovered = recover_results(run_dir)

For a run whose writer is gone. Publications that were promised are finished, leftovers removed, references set right,
and a task that is published without its `partial_saved` gets it, unless the run has ended. `RunRecorder.open` does the
same for the tasks that the crash can have met.
"""

import os
from pathlib import Path

from eventstore.recording.recorder import RunRecorder
from eventstore.results.intents import Intent, loose_ends, read_intents
from eventstore.results.references import points_elsewhere
from eventstore.results.store import Recovered, TaskStore, unsettled
from eventstore.results.task_dirs import TaskDir
from eventstore.run.names import DETAILS_NAME, RETRIES_NAME
from eventstore.stream.lock import RunLock
from eventstore.stream.scan import STREAM_NAME, scan
from projections.fold import Base
from projections.timeline import unsaved_tasks


def recover_results(run_dir: Path, *, thorough: bool = True) -> Recovered:
    """Recover a run's task results; without `thorough`, of the tasks that the stream does not name as saved.

    Raises LockedError while another writer is at work, and what opening a run may raise.
    """
    if not os.path.lexists(run_dir / STREAM_NAME):
        with RunLock(run_dir):  # it failed before its first event: there is nobody to tell
            return TaskStore(run_dir).recover(thorough=thorough)
    recorder = RunRecorder.open(run_dir, file_log_level=None)
    try:
        unsaved = () if recorder.finished else list(_told(run_dir).unsaved)
        done = TaskStore(run_dir, append=recorder.append).recover(unsaved, thorough=thorough)
    finally:
        recorder.close()
    before = recorder.recovered or Recovered([], [], [])
    return Recovered(before.finished + done.finished, before.events + done.events, before.removed + done.removed)


def pending_results(run_dir: Path, told: unsaved_tasks.State | None = None) -> list[str]:
    """Return what `recover_results` would do to the tasks that no event says are saved, one sentence each.

    `told` is the fold of the run's stream, for a caller that has just read it.
    """
    details = run_dir / DETAILS_NAME
    if details.is_symlink() or not details.is_dir():
        return []
    if not os.path.lexists(run_dir / STREAM_NAME):
        told = unsaved_tasks.State(ended=True)
    elif told is None:
        told = _told(run_dir)
    intents = read_intents(details)
    words = [f"finish the publication of {intent.name} as {intent.state}" for _, intent in intents]
    promised = _names_of(intents)
    words += [f"remove {_relative(path, run_dir)}" for path in loose_ends(details) if path.name not in promised]
    for task in unsettled(run_dir, told.unsaved):
        words += _pending_of(task, run_dir)
        if task.published and not told.ended and task.task_id in told.unsaved:
            words.append(f"append the partial_saved of {task.task_id} that was left out")
    return words


def _told(run_dir: Path) -> unsaved_tasks.State:
    state = unsaved_tasks.initial(Base())
    for block in scan(run_dir / STREAM_NAME).blocks():
        state = unsaved_tasks.apply_block(state, block)
    return state


def _names_of(intents: list[tuple[Path, Intent]]) -> set[str]:
    """Return files and staging folders that belong to a promise."""
    return {path.name for path, _ in intents} | {intent.staging for _, intent in intents if intent.staging}


def _pending_of(task: TaskDir, run_dir: Path) -> list[str]:
    words = []
    for path in task.leftovers:
        archive = path.parent.name == RETRIES_NAME and path.is_dir()
        words.append(f"{'give its name to' if archive else 'remove'} {_relative(path, run_dir)}")
    if points_elsewhere(task.path, task.relative):
        words.append(f"set the artifact references in {task.relative} right")
    return words


def _relative(path: Path, run_dir: Path) -> str:
    return path.relative_to(run_dir).as_posix()
