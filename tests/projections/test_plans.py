"""The fold `plans` on its own, whatever form a plan's line has."""

import json
import math
from typing import Any

import pytest

from eventstore.format import codec
from eventstore.format.records import Recorded
from eventstore.stream.scan import scan
from projections import Base, fold
from projections.snapshots import plans, run_info
from tests.tools.recorded import ROOT, RUNS

NAME = "execution_plan_resolved"


def record(seq: int, **members: Any) -> Recorded:
    line = codec.dump_compact({"run_id": "r", "event": NAME, "timestamp": 1.0, "payload": {}} | members) + b"\n"
    return Recorded(seq=seq, event=codec.decode(line), line=line, line_number=seq + 1)


def folded(*records: Recorded) -> dict[str, Any]:
    state = plans.initial(Base())
    for one in records:
        state = plans.apply(state, one)
    return plans.resolved(state)


@pytest.mark.parametrize("name", RUNS)
def test_the_plans_of_a_recorded_run_are_those_of_its_lines(name: str) -> None:
    """Each attempt has the payload of its last line; what is stored in run_info.json was made of the same."""
    path = ROOT / RUNS[name] / "progress.jsonl"
    wanted: dict[str, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == NAME:
            attempts = wanted.setdefault(event["task_id"], {"attempts": {}})["attempts"]
            attempts[str(event["attempt"])] = event["payload"]
    state = fold(plans, scan(path))
    assert plans.resolved(state) == wanted
    assert json.loads(plans.render(state)) == wanted
    assert run_info.render(fold(run_info, scan(path))).count(b'"attempts"') >= len(wanted)


def test_the_last_plan_of_an_attempt_counts_and_attempts_stand_side_by_side() -> None:
    """Equal plans are kept once, and no attempt gets that of another."""
    one, two = {"run_timeout_seconds": 1}, {"run_timeout_seconds": 2}
    records = [
        record(0, task_id="a", attempt=1, payload=one),
        record(1, task_id="a", attempt=2, payload=one),
        record(2, task_id="b", attempt=1, payload=one),
        record(3, task_id="a", attempt=1, payload=two),
    ]
    assert folded(*records) == {"a": {"attempts": {"1": two, "2": one}}, "b": {"attempts": {"1": one}}}
    state = plans.initial(Base())
    for each in records[:3]:
        plans.apply(state, each)
    assert len(state.unique) == 1
    assert state.plans["a"]["1"] is state.plans["a"]["2"] is state.plans["b"]["1"]


def test_a_plan_without_a_task_or_an_attempt_has_no_place() -> None:
    """Nor has any other event."""
    records = [
        record(0, task_id=None, attempt=1, payload={"x": 1}),
        record(1, task_id="", attempt=1, payload={"x": 1}),
        record(2, task_id="a", attempt=None, payload={"x": 1}),
        record(3, task_id="a", attempt=1, event="phase_changed", payload={"x": 1}),
    ]
    assert folded(*records) == {}


def test_nulls_stay_and_values_of_secret_keys_go() -> None:
    """What run_info.json holds of a plan is its payload, masked by key."""
    found = folded(record(0, task_id="a", attempt=1, payload={"recipe": None, "steps": [], "api_key": "abc"}))
    plan = found["a"]["attempts"]["1"]
    assert plan["recipe"] is None and plan["steps"] == [] and plan["api_key"] != "abc"


@pytest.mark.parametrize(
    ("changes", "attempt"),
    [
        ({"attempt": "2"}, "2"),
        ({"attempt": 2**70}, str(2**70)),
        ({"attempt": 1, "payload": {"x": 1, "n": math.nan}}, "1"),
    ],
)
def test_a_line_that_only_the_slow_path_reads_keeps_its_plan(changes: dict[str, Any], attempt: str) -> None:
    """An attempt that is no number of 64 bits, and a number that JSON has no form for."""
    line = json.dumps({"run_id": "r", "event": NAME, "timestamp": 1.0, "task_id": "a", "payload": {"x": 1}} | changes)
    text = line.encode() + b"\n"
    found = folded(Recorded(seq=0, event=codec.decode(text), line=text, line_number=1))
    assert list(found["a"]["attempts"]) == [attempt]
    assert found["a"]["attempts"][attempt]["x"] == 1
