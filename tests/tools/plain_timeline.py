"""What a stream of one writer says of tasks, attempts and retries: each column once, from the whole list of events.

Nothing here is shared with the folds: it walks JSON objects, in their order, as often as it takes. Times are Unix
seconds as the events have them, durations are whole microseconds.
"""

from typing import Any

Json = dict[str, Any]
Key = tuple[str | None, int | None]

OF_ATTEMPTS = ("phase_changed", "attempt_started", "attempt_finished", "attempt_retry")
OF_TASKS = (*OF_ATTEMPTS, "task_started", "task_finished", "execution_plan_resolved", "partial_saved")
ADMINISTRATIVE = ("metric_artifacts_written", "stream_repaired", "stream_scrubbed", "records_lost")
OF_RETRIES = ("retry", "max_retries", "stage", "scope", "matched_pattern", "retry_delay_seconds", "retry_detail")


def microseconds(seconds: float | None) -> int | None:
    """Unix seconds as SQL's TIMESTAMP holds them."""
    return None if seconds is None else round(seconds * 1e6)


def length(start: float | None, end: float | None) -> int | None:
    """Microseconds between two times; None where one is missing or the clock went back."""
    if start is None or end is None or round(end * 1e6) < round(start * 1e6):
        return None
    return round(end * 1e6) - round(start * 1e6)


class PlainTimeline:
    """`tasks`, `attempts` and `retries` of a list of events, as rows of members."""

    def __init__(self, events: list[Json]) -> None:
        self.events = [event | {"seq": seq} for seq, event in enumerate(events)]
        told = [event["timestamp"] for event in self.events if event["event"] not in ADMINISTRATIVE]
        self.last = told[-1] if told else None

    def tasks(self) -> list[Json]:
        ids = dict.fromkeys(e["task_id"] for e in self.events if e["event"] in OF_TASKS and e["task_id"] is not None)
        return [self._task(task_id) for task_id in ids]

    def attempts(self) -> list[Json]:
        keys = dict.fromkeys(self._key(event) for event in self.events if event["event"] in OF_ATTEMPTS)
        return [self._attempt(key) for key in keys if None not in key]

    def retries(self) -> list[Json]:
        return [self._retry(event) for event in self.events if event["event"] == "attempt_retry"]

    @staticmethod
    def _key(event: Json) -> Key:
        return event["task_id"], event["attempt"]

    def _task(self, task_id: str) -> Json:
        own = [event for event in self.events if event["task_id"] == task_id and event["event"] in OF_TASKS]
        by_name = {name: [event for event in own if event["event"] == name] for name in OF_TASKS}
        starts, finishes = by_name["task_started"], by_name["task_finished"]
        categories = [event["category"] for event in own if event["category"] is not None]
        finish = finishes[-1] if finishes else None
        start = starts[0] if starts else None
        began = start and start["timestamp"]
        if finish is None:
            took = length(began, self.last)
        else:
            took = length(began, finish["timestamp"]) if start and start["seq"] < finish["seq"] else None
        return {
            "task_id": task_id,
            "category": categories[-1] if categories else None,
            "status": finish and (finish["status"] or "completed"),
            "severity": finish and (finish["payload"].get("severity") or None),
            "position": starts[-1]["payload"].get("index") if starts else None,
            "started_at": microseconds(began),
            "finished_at": microseconds(finish and finish["timestamp"]),
            "seconds": took,
            "attempts": len(by_name["attempt_started"]),
            "attempts_finished": len(by_name["attempt_finished"]),
            "retries": len(by_name["attempt_retry"]),
            "starts": len(starts),
            "finishes": len(finishes),
            "partials_saved": len(by_name["partial_saved"]),
            "last_phase": next((e["phase"] or "running" for e in reversed(by_name["phase_changed"])), None),
            "last_event_at": microseconds(own[-1]["timestamp"]),
            "last_seq": own[-1]["seq"],
        }

    def _ends_all(self, event: Json, task_id: str | None) -> bool:
        """Whatever runs in the task ends with this event."""
        if event["event"] == "run_finished":
            return True
        bounds = ("task_started", "task_finished")
        return task_id is not None and event["task_id"] == task_id and event["event"] in bounds

    def _concerning(self, key: Key, before: int | None = None) -> list[Json]:
        """The events that an attempt sees: its own, and those that end all of its task."""
        return [
            event
            for event in self.events[:before]
            if self._ends_all(event, key[0]) or (event["event"] in OF_ATTEMPTS and self._key(event) == key)
        ]

    def _attempt(self, key: Key) -> Json:
        seen = self._concerning(key)
        own = [event for event in seen if event["event"] in OF_ATTEMPTS]
        by_name = {name: [event for event in own if event["event"] == name] for name in OF_ATTEMPTS}
        starts, phases = by_name["attempt_started"], by_name["phase_changed"]
        stays = [
            event
            for before, event in zip([None, *seen], seen, strict=False)
            if event in phases
            and not (before in phases and (before["phase"] or "running") == (event["phase"] or "running"))
        ]
        ender, is_open = None, True
        for event in seen[seen.index(own[0]) :]:
            if event["event"] == "attempt_started":
                is_open = True
            elif event["event"] == "attempt_finished" or (is_open and event["event"] not in OF_ATTEMPTS):
                ender, is_open = event, False
        began = starts[0]["timestamp"] if starts else None
        if is_open:
            took = length(began, self.last)
        else:
            took = length(began, ender["timestamp"]) if starts and starts[0]["seq"] < ender["seq"] else None
        return {
            "task_id": key[0],
            "attempt": key[1],
            "category": own[0]["category"],
            "status": next((event["status"] for event in reversed(by_name["attempt_finished"])), None),
            "started_at": microseconds(began),
            "finished_at": None if is_open else microseconds(ender["timestamp"]),
            "seconds": took,
            "ended_by": None if is_open else ender["event"],
            "starts": len(starts),
            "retries": len(by_name["attempt_retry"]),
            "phases": len(stays),
            "last_phase": phases[-1]["phase"] or "running" if phases else None,
        }

    def _retry(self, retry: Json) -> Json:
        seen = self._concerning(self._key(retry), retry["seq"])
        since = phase = None
        for event in seen:
            if event["event"] in ("attempt_started", "attempt_retry"):
                since, phase = event["timestamp"], None
            elif event["event"] == "attempt_finished":
                phase = None
            elif event["event"] == "phase_changed":
                phase = event["phase"] or "running"
            else:
                since = phase = None
        told = {name: retry["payload"].get(name) for name in OF_RETRIES}
        if told["retry_delay_seconds"] is not None:
            told["retry_delay_seconds"] = float(told["retry_delay_seconds"])
        return {
            "seq": retry["seq"],
            "task_id": retry["task_id"],
            "attempt": retry["attempt"],
            "category": retry["category"],
            "retried_at": microseconds(retry["timestamp"]),
            **told,
            "phase": phase,
            "discarded_seconds": length(since, retry["timestamp"]),
        }
