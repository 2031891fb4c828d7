"""Timeline rows: phases, attempts, tasks, retries and plans follow from the stream, also where a run died."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from eventstore.format import codec
from eventstore.format.records import Recorded
from eventstore.stream.scan import scan
from projections import fold
from projections.timeline import timeline
from tests.tools.recorded import ROOT, RUNS

Event = dict[str, Any]


def events_of(name: str) -> list[Event]:
    lines = (ROOT / RUNS[name] / "progress.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


def records(events: list[Event]) -> list[Recorded]:
    return [Recorded(seq=n, event=codec.decode(json.dumps(event).encode())) for n, event in enumerate(events)]


def folded(events: list[Event]) -> dict[str, list[Event]]:
    return json.loads(timeline.render(fold(timeline, records(events))))


# -- a small model that shares nothing with the fold: for each phase, look ahead for what ends it


def model_phases(events: list[Event]) -> list[tuple[Any, ...]]:
    spans = []
    for begin, event in enumerate(events):
        if event["event"] != "phase_changed" or continues(events, begin):
            continue
        end = next((n for n in range(begin + 1, len(events)) if ends(events[n], event)), None)
        ended = (None, None) if end is None else (events[end]["event"], events[end]["timestamp"])
        spans.append((begin, event["task_id"], event["attempt"], phase_of(event), event["timestamp"], *ended))
    return spans


def phase_of(event: Event) -> str:
    return event["phase"] or "running"


def same(one: Event, other: Event) -> bool:
    return (one["task_id"], one["attempt"]) == (other["task_id"], other["attempt"])


def continues(events: list[Event], at: int) -> bool:
    for earlier in range(at - 1, -1, -1):
        if events[earlier]["event"] == "phase_changed" and same(events[earlier], events[at]):
            return phase_of(events[earlier]) == phase_of(events[at]) and not any(
                ends(events[n], events[earlier]) for n in range(earlier + 1, at)
            )
    return False


def ends(event: Event, phase: Event) -> bool:
    match event["event"]:
        case "phase_changed":
            return same(event, phase) and phase_of(event) != phase_of(phase)
        case "attempt_started" | "attempt_finished" | "attempt_retry":
            return same(event, phase)
        case "task_started" | "task_finished":
            return event["task_id"] is not None and event["task_id"] == phase["task_id"]
        case "run_finished":
            return True
    return False


def fold_phases(events: list[Event]) -> list[tuple[Any, ...]]:
    names = ("seq", "task_id", "attempt", "phase", "started_at", "ended_by", "ended_at")
    return sorted((tuple(row[name] for name in names) for row in folded(events)["phases"]), key=lambda span: span[0])


@pytest.mark.parametrize("name", RUNS)
def test_phases_of_recorded_runs_are_those_of_the_model(name: str) -> None:
    """Each stay in a phase begins and ends where looking ahead in the stream says."""
    events = events_of(name)[:500]
    assert fold_phases(events) == model_phases(events)


@pytest.mark.parametrize("name", ["r_ok", "r_surrogate", "k3/20261129_143950"])
def test_phases_of_every_prefix_are_those_of_the_model(name: str) -> None:
    """A run may die after any event: what is open then has no end, whatever came later."""
    events = events_of(name)
    for count in range(len(events)):
        assert fold_phases(events[:count]) == model_phases(events[:count])


def event(name: str, timestamp: float, **members: Any) -> Event:
    base: Event = dict.fromkeys(["task_id", "category", "attempt", "phase", "status"])
    return {"run_id": "r", "event": name, "timestamp": timestamp, **base, "payload": {}, **members}


EVENTS = st.builds(
    event,
    st.sampled_from(
        [
            "task_started",
            "attempt_started",
            "phase_changed",
            "phase_changed",
            "phase_changed",
            "attempt_retry",
            "attempt_finished",
            "task_finished",
            "run_finished",
            "run_started",
            "who_knows",
            "partial_saved",
        ]
    ),
    st.integers(0, 1000).map(lambda n: n / 8),
    task_id=st.sampled_from(["a", "b", "", None]),
    attempt=st.sampled_from([None, 1, 2]),
    phase=st.sampled_from([None, "plan", "evaluate"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=30))
def test_phases_of_any_sequence_are_those_of_the_model(events: list[Event]) -> None:
    """Late, repeated and foreign events, stepping clocks: the rule stays the same."""
    assert fold_phases(events) == model_phases(events)


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=30), st.integers(0, 30))
def test_taking_ended_rows_out_on_the_way_loses_and_changes_none(events: list[Event], cut: int) -> None:
    """Memory stays bounded on long streams, and the rows are the same."""
    whole = timeline.rows(fold(timeline, records(events)))
    state = timeline.initial(None)  # type: ignore[arg-type]
    taken = []
    for number, record in enumerate(records(events)):
        timeline.apply(state, record)
        if number == cut:
            taken = [to_builtins(row) for row in timeline.take_ended(state)]
    parts = taken + [to_builtins(row) for row in timeline.rows(state)]
    assert sorted(map(repr, parts)) == sorted(repr(to_builtins(row)) for row in whole)


def test_counts_of_tasks_and_attempts_add_up_on_recorded_runs() -> None:
    """Rows of tasks, attempts, retries and plans count the events that made them."""
    for name in RUNS:
        events = events_of(name)
        rows = folded(events)
        count = {kind: sum(e["event"] == kind for e in events) for kind in {e["event"] for e in events}}
        assert sum(row["starts"] for row in rows["tasks"]) == count.get("task_started", 0)
        assert sum(row["finishes"] for row in rows["tasks"]) == count.get("task_finished", 0)
        assert sum(row["starts"] for row in rows["attempts"]) == count.get("attempt_started", 0)
        assert len(rows["retries"]) == count.get("attempt_retry", 0)
        assert len(rows["plans"]) == count.get("execution_plan_resolved", 0)
        assert sum(row["updates"] for row in rows["phases"]) == count.get("phase_changed", 0)


def test_a_retry_says_where_it_struck_and_what_it_cost() -> None:
    """The phase that was discarded, and the seconds since the attempt's start or its last retry."""
    rows = folded(
        [
            event("attempt_started", 10, task_id="t", attempt=1),
            event("phase_changed", 11, task_id="t", attempt=1, phase="evaluate"),
            event("attempt_retry", 15, task_id="t", attempt=1, payload={"retry": 1, "matched_pattern": "429"}),
            event("phase_changed", 16, task_id="t", attempt=1, phase="run_harness"),
            event("attempt_retry", 18, task_id="t", attempt=1, payload={"retry": 2}),
        ]
    )
    told = [(row["phase"], row["discarded_seconds"], row["retry"], row["matched_pattern"]) for row in rows["retries"]]
    assert told == [("evaluate", 5.0, 1, "429"), ("run_harness", 3.0, 2, None)]
    assert rows["attempts"][0]["retries"] == 2


def test_odd_values_in_a_stream_become_what_a_column_can_hold(tmp_path: Path) -> None:
    """A number as category, a huge attempt, a lone surrogate: no row is lost for it."""
    lines = [
        b'{"run_id":"r","event":"phase_changed","timestamp":1,"task_id":"t","category":7,"attempt":1,"phase":"plan","payload":{}}',
        b'{"run_id":"r","event":"phase_changed","timestamp":2,"task_id":"\\ud800","attempt":%d,"phase":"plan","payload":{"x":NaN}}'
        % 10**30,
    ]
    path = tmp_path / "progress.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    rows = [to_builtins(row) for row in timeline.open_phases(fold(timeline, scan(path)))]
    found = [(row["task_id"], row["category"], row["attempt"]) for row in rows]
    assert found == [("t", "7", 1), ("\\ud800", None, None)]


def test_a_time_beyond_all_numbers_gives_no_duration() -> None:
    """An integer of 400 digits is a time that a line may have; nothing lasts until then."""
    events = events_of("r_retry2")
    first = next(n for n, event in enumerate(events) if event["event"] == "task_finished")
    events[first]["timestamp"] = 10**400
    finished = next(row for row in folded(events)["tasks"] if row["task_id"] == events[first]["task_id"])
    assert finished["seconds"] is None and finished["status"] == "completed"
