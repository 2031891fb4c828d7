"""Arbitrary event sequences through a small independent model and through ours."""

import json
import subprocess
import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.format import codec
from eventstore.format.records import Block, Head, Recorded
from projections import Base, fold
from projections.snapshots import counts, progress

TASKS = st.sampled_from(["a", "b", "c", "", None])
NAMES = st.sampled_from(
    [
        "run_started",
        "tasks_loaded",
        "reuse_loaded",
        "task_started",
        "phase_changed",
        "attempt_started",
        "phase_changed",
        "execution_plan_resolved",
        "attempt_retry",
        "attempt_finished",
        "partial_saved",
        "task_finished",
        "summary_started",
        "run_finished",
        "something_new",
        "records_lost",
    ]
)
COUNTS = st.one_of(st.integers(0, 9), st.none(), st.just("3"), st.just(2.7))
PAYLOADS = st.fixed_dictionaries(
    {},
    optional={
        "total_tasks": COUNTS,
        "reused_tasks": COUNTS,
        "tasks_to_run": COUNTS,
        "reused_severity_counts": st.one_of(st.none(), st.fixed_dictionaries({}, optional={"error": COUNTS})),
        "severity": st.sampled_from(["fatal", "error", "warning", "", None]),
        "note": st.sampled_from([float("nan"), 2**70, "\ud800", "x"]),
    },
)
EVENTS = st.builds(
    lambda **members: members,
    event=NAMES,
    timestamp=st.one_of(st.integers(-5, 10**9), st.floats(-5, 2e9, allow_nan=False).map(lambda t: round(t, 6))),
    task_id=TASKS,
    category=st.sampled_from(["easy", None, 7]),
    attempt=st.sampled_from([1, 2, None]),
    phase=st.sampled_from(["plan", "evaluate", "retry_wait", None]),
    status=st.sampled_from(["completed", "failed", "Skipped", "error", "cancelled", None]),
    payload=PAYLOADS,
)


class Tracker:
    """The rules of the specification once more, as plainly as they can be written: everything at once, nothing kept."""

    def __init__(self) -> None:
        self.counts: dict[str, Any] = {"status": "created"} | dict.fromkeys(counts.COUNTERS, 0)
        self.phases: dict[str, int] = {}
        self.active: dict[str, dict[str, Any]] = {}
        self.first: float | None = None
        self.last: float | None = None

    def see(self, e: dict[str, Any]) -> None:
        if e["event"] == "records_lost":
            return
        if self.first is None:
            self.first = e["timestamp"]
        self.last = e["timestamp"]
        getattr(self, e["event"], lambda e, p: None)(e, e["payload"])

    def run_started(self, e: Any, p: Any) -> None:
        self.counts["status"] = "running"

    def tasks_loaded(self, e: Any, p: Any) -> None:
        self.counts["total_tasks"] = self.counts["pending_tasks"] = int(p.get("total_tasks") or 0)

    def reuse_loaded(self, e: Any, p: Any) -> None:
        severities = p.get("reused_severity_counts") or {}
        for name in ("reused_tasks", "finished_tasks", "completed_tasks"):
            self.counts[name] = int(p.get("reused_tasks") or 0)
        self.counts["pending_tasks"] = int(p.get("tasks_to_run") or 0)
        self.counts["error_tasks"] = int(severities.get("error") or 0)
        self.counts["warning_tasks"] = int(severities.get("warning") or 0)

    def task_started(self, e: Any, p: Any) -> None:
        self.counts["pending_tasks"] = max(0, self.counts["pending_tasks"] - 1)
        self.counts["running_tasks"] += 1
        if e["task_id"]:
            self.active[e["task_id"]] = self._entry(e) | {"phase": e["phase"] or "running"}

    def phase_changed(self, e: Any, p: Any) -> None:
        if e["task_id"]:
            self.active[e["task_id"]] = self._entry(e) | {"details": p}
        self._recount()

    def attempt_started(self, e: Any, p: Any) -> None:
        self.counts["attempts_started"] += 1

    def attempt_finished(self, e: Any, p: Any) -> None:
        self.counts["attempts_finished"] += 1

    def partial_saved(self, e: Any, p: Any) -> None:
        self.counts["partials_saved"] += 1

    def task_finished(self, e: Any, p: Any) -> None:
        self.counts["running_tasks"] = max(0, self.counts["running_tasks"] - 1)
        self.counts["finished_tasks"] += 1
        status = (e["status"] or "completed").lower()
        self.counts[f"{status if status in ('skipped', 'failed') else 'completed'}_tasks"] += 1
        if p.get("severity") in ("error", "warning"):
            self.counts[f"{p['severity']}_tasks"] += 1
        self.active.pop(e["task_id"], None)
        self._recount()

    def summary_started(self, e: Any, p: Any) -> None:
        self.counts["status"] = "summarizing"

    def run_finished(self, e: Any, p: Any) -> None:
        self.counts["status"] = e["status"] or "completed"
        self.counts["running_tasks"] = 0
        self.counts["pending_tasks"] = max(0, self.counts["total_tasks"] - self.counts["finished_tasks"])
        self.active, self.phases = {}, {}

    def _entry(self, e: Any) -> dict[str, Any]:
        return {"category": e["category"], "phase": e["phase"], "attempt": e["attempt"], "updated_at": e["timestamp"]}

    def _recount(self) -> None:
        phases = [str(entry["phase"] or "running") for entry in self.active.values()]
        self.phases = {phase: phases.count(phase) for phase in phases}

    def snapshot(self) -> dict[str, Any]:
        elapsed = 0.0 if self.last is None or self.first is None else round(self.last - self.first, 3)
        clock = {"elapsed_seconds": elapsed, "updated_at": self.last}
        return {**self.counts, "current_phase_counts": self.phases, "active_tasks": self.active, **clock}


def records_of(events: list[dict[str, Any]]) -> list[Recorded]:
    """The events as lines of a stream, read back by the codec."""
    records = []
    for seq, members in enumerate(events):
        line = codec.dump_compact({"run_id": "r", **members})
        records.append(Recorded(seq=seq, event=codec.decode(line), line=line))
    return records


def text_of(snapshot: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in snapshot.items() if k not in ("run_id", *progress.IDENTITY)})


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_any_sequence_folds_as_the_model_says(events: list[dict[str, Any]]) -> None:
    """Duplicates, late events, clock steps, unknown types, odd values: every prefix agrees with the model."""
    tracker, state = Tracker(), progress.initial(Base())
    for record, members in zip(records_of(events), events, strict=True):
        tracker.see(members)
        state = progress.apply(state, record)
        assert text_of(progress.snapshot(state)) == text_of(tracker.snapshot())


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=40), st.integers(1, 7))
def test_batches_of_any_size_fold_as_single_records(events: list[dict[str, Any]], size: int) -> None:
    """How a stream is cut into batches changes nothing."""
    records = records_of(events)
    singly = fold(progress, records)
    state = progress.initial(Base())
    for start in range(0, len(records), size):
        batch = records[start : start + size]
        names = [members["event"] for members in events[start : start + size]]
        heads = [Head(r.event.run_id, n, r.event.timestamp, r.event.task_id) for r, n in zip(batch, names, strict=True)]
        progress.apply_block(state, Block(heads, [record.line for record in batch], start, 0, 1))
    assert progress.render(state) == progress.render(singly)


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=20))
def test_events_that_were_never_lines_fold_alike(events: list[dict[str, Any]]) -> None:
    """A typed event without its line gives the same snapshot as the line it came from."""
    records = records_of(events)
    typed = [Recorded(seq=record.seq, event=record.event) for record in records]
    assert progress.render(fold(progress, typed)) == progress.render(fold(progress, records))


def test_bytes_do_not_depend_on_the_hash_seed(runs_root: Any) -> None:
    """Two processes with different hash seeds render the same bytes."""
    code = (
        "import sys, hashlib; from eventstore.stream.scan import scan; from projections import replay\n"
        "s = replay(scan(sys.argv[1])); "
        "print(hashlib.sha256(s.rendered_progress + s.rendered_run_info).hexdigest())"
    )
    run = str(next(runs_root.glob("*/r_odd")))
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, run], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(outputs) == 1
