"""Breakers with a story: what a crash, a rename or a strange program would leave, one rule broken by each."""

import json
import shutil
from pathlib import Path

from tests.tools.breaking import (
    Json,
    drop_info,
    events_of,
    task_dir,
    where,
    write_events,
)


def _drop_end(run: Path) -> None:
    events = events_of(run)
    write_events(run, [event for event in events if event["event"] != "run_finished"])


def without_end(run: Path) -> None:
    """Killed before anything of the end was written."""
    _drop_end(run)
    drop_info("status", "finished_at", "error")(run)


def without_end_but_status(run: Path) -> None:
    """Killed between the final state in run_info.json and the terminal event."""
    _drop_end(run)


def no_stream_and_status(run: Path) -> None:
    """Failed before the first event, and killed before the final state."""
    (run / "progress.jsonl").unlink()
    (run / "progress.json").unlink()


def severity_against_status(run: Path) -> None:
    """The one task with an error now finishes as failed."""
    events = events_of(run)
    position = next(i for i, event in enumerate(events) if event["payload"].get("severity") == "error")
    events[position]["status"] = "failed"
    write_events(run, events)


def same_index(run: Path) -> None:
    """Two tasks with one index, at start and finish alike."""
    events = events_of(run)
    for event in events:
        if event["payload"].get("index") == 3:
            event["payload"]["index"] = 2
    write_events(run, events)


def without_failed_finish(events: list[Json]) -> list[Json]:
    return [event for event in events if not (event["event"] == "task_finished" and event["status"] == "failed")]


def one_more_task(run: Path) -> None:
    """One task was loaded that never started."""
    events = events_of(run)
    events[where(events, "tasks_loaded")]["payload"]["total_tasks"] = 5
    events[where(events, "reuse_loaded")]["payload"]["tasks_to_run"] = 5
    write_events(run, events)


def second_attempt(run: Path) -> None:
    """A second attempt where k is 1."""
    events = events_of(run)
    started, finished = where(events, "attempt_started"), where(events, "attempt_finished", task_id="arith-000")
    task_id = events[started]["task_id"]
    finished = where(events, "attempt_finished", task_id=task_id)
    copies = [{**events[i], "attempt": 2, "timestamp": events[finished]["timestamp"]} for i in (started, finished)]
    write_events(run, [*events[: finished + 1], *copies, *events[finished + 1 :]])


def late_phase(run: Path) -> None:
    """An attempt enters a phase after its end."""
    events = events_of(run)
    finished = where(events, "attempt_finished")
    task_id = events[finished]["task_id"]
    phase = events[where(events, "phase_changed", -1, task_id=task_id, attempt=1)]
    late = {**phase, "timestamp": events[finished]["timestamp"]}
    write_events(run, [*events[: finished + 1], late, *events[finished + 1 :]])


def retry_beyond(run: Path) -> None:
    """A second retry where one is the limit, diagnostics and count included."""
    events = events_of(run)
    position = where(events, "attempt_retry")
    again = {**events[position], "payload": {**events[position]["payload"], "retry": 2}}
    write_events(run, [*events[: position + 1], again, *events[position + 1 :]])


def snapshot_behind(run: Path) -> None:
    """The snapshot of some events ago."""
    events = events_of(run)
    whole = (run / "progress.jsonl").read_bytes()
    write_events(run, events[:40])
    (run / "progress.jsonl").write_bytes(whole)


def renamed_ids(run: Path) -> None:
    """The directory was renamed."""
    for name in ("progress.jsonl", "progress.json", "run_info.json", "params.json"):
        path = run / name
        path.write_text(path.read_text("utf-8").replace('"r_ok"', '"r_other"'), "utf-8")
    for path in run.glob("details/*/*/attempt-*/checkpoint.json"):
        path.write_text(path.read_text("utf-8").replace('"r_ok"', '"r_other"'), "utf-8")


def drop_attempt(run: Path) -> None:
    """A finished attempt is neither listed nor there."""
    task = task_dir(run)
    members = json.loads((task / "task.json").read_text())
    members["attempts"].pop("2")
    (task / "task.json").write_text(json.dumps(members))
    shutil.rmtree(task / "attempt-2")


def older_evaluation(evaluation: Json) -> None:
    evaluation["schema_version"] = "agentcompass.evaluation_checkpoint.v3"
    evaluation.pop("run_result")
    evaluation.pop("prepared_task")
