"""After a crash: what it left half done among task results is finished or undone, and the stream is told.

    recovered = recover_results(run_dir)

For a run whose writer is gone. Publications that were promised are finished, leftovers removed, references set right,
and a task that is published without its `partial_saved` gets it, unless the run has ended.
"""

from pathlib import Path

from projections import saves
from projections.fold import Base

from .publishing import Recovered, TaskStore
from .recorder import RunRecorder
from .scan import STREAM_NAME, scan


def recover_results(run_dir: Path, recorder: RunRecorder | None = None) -> Recovered:
    """Recover a run's task results, with the recorder that has it open, or with one opened for this.

    Raises LockedError while another writer is at work, and what opening a run may raise.
    """
    if recorder is None:
        recorder = RunRecorder.open(run_dir, file_log_level=None)
        try:
            return recover_results(run_dir, recorder)
        finally:
            recorder.close()
    state = saves.initial(Base())
    for block in scan(run_dir / STREAM_NAME).blocks():
        state = saves.apply_block(state, block)
    store = TaskStore(run_dir, append=recorder.append)
    return store.recover(() if recorder.finished else list(state.unsaved))
