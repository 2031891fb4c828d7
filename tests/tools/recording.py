"""Runs of our own recorder, for tests that need a sound one."""

from pathlib import Path
from typing import Any

from eventstore.format import events as e
from eventstore.recording.recorder import RunRecorder

Json = dict[str, Any]


def record_run(run: Path, *, tasks: int = 3) -> None:
    """A whole run of our own recorder at `run`."""
    ids = {"benchmark": {"id": "b"}, "harness": {"id": "h"}, "environment": {"id": "e"}, "model": {"id": "m"}}
    request = {**ids, "execution": {"attempts": {"k": 2, "strategy": "avg"}, "max_retries": 1}}
    reuse = e.ReuseLoadedPayload(reused_tasks=0, tasks_to_run=tasks, reused_severity_counts={})
    with RunRecorder.create(run, request=request) as recorder:
        recorder.append(e.TasksLoaded(payload=e.TasksLoadedPayload(total_tasks=tasks)))
        recorder.append(e.ReuseLoaded(payload=reuse))
        for index in range(tasks):
            about: Json = {"task_id": f"t{index}", "category": "c"}
            place = {"index": index, "total": tasks}
            recorder.append(e.TaskStarted(**about, payload=e.TaskStartedPayload(**place)))
            for attempt in (1, 2):
                recorder.append(e.AttemptStarted(**about, attempt=attempt))
                recorder.append(e.PhaseChanged(**about, attempt=attempt, phase="plan"))
                plan = {"environment": {"id": "e"}, "applied_recipes": []}
                recorder.append(e.ExecutionPlanResolved(**about, attempt=attempt, phase="plan", payload=plan))
                recorder.append(e.AttemptFinished(**about, attempt=attempt, status="completed"))
            finished = e.TaskFinishedPayload(**place, severity="")
            recorder.append(e.TaskFinished(**about, status="completed", payload=finished))
        recorder.append(e.SummaryStarted())
        recorder.finish("completed")
