"""The lifecycle automaton by itself: pure, over records or blocks, and lean."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.format import codec
from eventstore.format.events import SPECIFIED_EVENTS
from eventstore.format.records import Recorded
from eventstore.stream.scan import scan
from projections.fold import Base, fold
from projections.verify import lifecycle
from projections.verify.lifecycle import _RULES
from tests.tools.breaking import events_of, where, write_events
from tests.tools.recorded import RUNS
from tests.tools.streams import plain_line

Json = dict[str, Any]


def records(*events: Json) -> list[Recorded]:
    """Records of a small stream; what isn't said is a plain event of task `t`."""
    lines = []
    for number, event in enumerate(events):
        members = {"event": "phase_changed", "task_id": "t", "category": "c", "timestamp": 1000.5 + number}
        lines.append(plain_line(0, **(members | {"phase": None} | event)))
    return [Recorded(seq=seq, event=codec.decode(line), line=line) for seq, line in enumerate(lines)]


def codes(stream: list[Recorded], base: Base | None = None) -> Counter[str]:
    state = lifecycle.initial(base or Base())
    for record in stream:
        lifecycle.apply(state, record)
    return lifecycle.finish(state).counts


START = {
    "event": "run_started",
    "task_id": None,
    "category": None,
    "payload": {"benchmark": "b", "harness": "h", "environment": "e", "model": "m"},
}
LOADED = {"event": "tasks_loaded", "task_id": None, "category": None, "payload": {"total_tasks": 1}}
TASK = {"event": "task_started", "payload": {"index": 0, "total": 1}}
ATTEMPT = {"event": "attempt_started", "attempt": 1}
PHASE = {"phase": "run_harness", "attempt": 1}
ATTEMPT_END = {"event": "attempt_finished", "attempt": 1, "status": "completed"}
TASK_END = {"event": "task_finished", "status": "completed", "payload": {"index": 0, "total": 1, "severity": ""}}
SUMMARY = {"event": "summary_started", "task_id": None, "category": None}
END = {"event": "run_finished", "task_id": None, "category": None, "status": "completed"}
WHOLE = (START, LOADED, TASK, ATTEMPT, PHASE, ATTEMPT_END, TASK_END, SUMMARY, END)
RETRY = {
    "event": "attempt_retry",
    "attempt": 1,
    "payload": {"retry": 1, "max_retries": 2, "stage": "evaluate", "scope": "evaluate"},
}


def test_every_specified_event_has_its_rule() -> None:
    """The table is whole."""
    assert _RULES.keys() == SPECIFIED_EVENTS.keys()


def test_a_whole_small_run_is_sound() -> None:
    """And so is one with a retry of scoring alone, counted on within its attempt."""
    assert codes(records(*WHOLE)) == {}
    second = {**RETRY, "payload": {**RETRY["payload"], "retry": 2, "scope": "attempt"}}  # type: ignore[dict-item]
    assert codes(records(*WHOLE[:5], RETRY, PHASE, second, PHASE, *WHOLE[5:])) == {}


@pytest.mark.parametrize("missing", range(len(WHOLE)))
def test_no_event_of_a_small_run_can_go_missing_unnoticed(missing: int) -> None:
    """But a phase: the specification lets an attempt have any."""
    found = codes(records(*WHOLE[:missing], *WHOLE[missing + 1 :]))
    assert bool(found) == (WHOLE[missing] is not PHASE)


@pytest.mark.parametrize("position", range(len(WHOLE)))
def test_no_event_of_a_small_run_can_stand_twice_unnoticed(position: int) -> None:
    """But a phase: it may be entered again."""
    found = codes(records(*WHOLE[: position + 1], *WHOLE[position:]))
    assert bool(found) == (WHOLE[position] is not PHASE)


@pytest.mark.parametrize("position", range(len(WHOLE) - 1))
def test_no_two_neighbours_can_change_places_unnoticed(position: int) -> None:
    """Their times stay in order, so only the automaton can see it."""
    swapped = [*WHOLE[:position], WHOLE[position + 1], WHOLE[position], *WHOLE[position + 2 :]]
    assert codes(records(*swapped))


def test_the_limits_come_from_the_stored_request_or_the_stream() -> None:
    """`k` and `max_retries`, from run_info.json or from our own run_started."""
    request = {"execution": {"attempts": {"k": 1, "strategy": "avg"}, "max_retries": 0}}
    second = {**ATTEMPT, "attempt": 2}
    end = {**ATTEMPT_END, "attempt": 2}
    stream = [*WHOLE[:5], second, end, *WHOLE[5:]]
    assert codes(records(*stream)) == {}
    assert codes(records(*stream), Base(run_info={"request": request})) == {"attempt_beyond_k": 1}
    ours = {**START, "payload": {**START["payload"], "request": request}}  # type: ignore[dict-item]
    assert codes(records(ours, *stream[1:])) == {"attempt_beyond_k": 1}


def test_our_administrative_events_may_stand_anywhere() -> None:
    """After the terminal event as well."""
    repaired = {"event": "stream_repaired", "task_id": None, "category": None, "payload": {"removed": []}}
    artifacts = {"event": "metric_artifacts_written", "task_id": None, "category": None, "payload": {}}
    assert codes(records(*WHOLE[:4], repaired, *WHOLE[4:], artifacts, repaired)) == {"repaired": 2}


def test_what_a_task_in_flight_was_doing_is_said() -> None:
    """Attempt and last phase, when the stream just stops."""
    state = fold(lifecycle, records(*WHOLE[:5]))
    finding = next(f for f in lifecycle.finish(state).findings if f.code == "task_in_flight")
    assert finding.task_id == "t" and finding.attempt == 1
    assert "attempt 1 going on" in finding.message and "run_harness" in finding.message


def test_attempts_side_by_side_are_told_apart() -> None:
    """A phase of the one that is over is late, whatever the quick check remembered."""
    second = {**ATTEMPT, "attempt": 2}
    other = {**PHASE, "attempt": 2}
    stream = [*WHOLE[:4], second, PHASE, other, PHASE, other, ATTEMPT_END, other, PHASE, other]
    found = codes(records(*stream))
    assert found["late_attempt_event"] == 1


@pytest.mark.parametrize("spacing", [(", ", ": "), (",", ":"), (" , ", " :  ")])
def test_spelling_makes_no_difference(spacing: tuple[str, str], runs_root: Path, tmp_path: Path) -> None:
    """The quick check compares bytes; odd spacing only makes it slower."""
    source = runs_root / RUNS["r_kill_mid"] / "progress.jsonl"
    lines = [json.dumps(json.loads(line), separators=spacing) + "\n" for line in source.read_text().splitlines()]
    (tmp_path / "progress.jsonl").write_text("".join(lines))
    expected = lifecycle.finish(fold(lifecycle, scan(source))).counts
    assert lifecycle.finish(fold(lifecycle, scan(tmp_path))).counts == expected


def test_the_order_of_members_makes_no_difference(runs_root: Path, tmp_path: Path) -> None:
    """A line whose payload stands first, with look-alikes of every member in it, is read for what it is."""
    source = runs_root / RUNS["r_retry2"] / "progress.jsonl"
    lines = []
    for line in source.read_text().splitlines():
        members = json.loads(line)
        decoys = {"attempt": 9, "phase": "x", "category": "y", "status": "z", "event": "w", "payload": {"attempt": 8}}
        payload = {"inner": decoys, **members.pop("payload")}
        lines.append(json.dumps({"payload": payload, **members}) + "\n")
    (tmp_path / "progress.jsonl").write_text("".join(lines))
    assert lifecycle.finish(fold(lifecycle, scan(tmp_path))).counts == {}


def test_one_record_at_a_time_gives_what_blocks_give(runs_root: Path) -> None:
    """The same codes, places included."""
    path = runs_root / RUNS["r_kill_mid"] / "progress.jsonl"
    by_block = lifecycle.finish(fold(lifecycle, scan(path)))
    state = lifecycle.initial(Base())
    for record in scan(path):
        lifecycle.apply(state, record)
    assert lifecycle.finish(state).findings == by_block.findings


def test_places_are_those_of_the_line(run_dir: Callable[[str], Path]) -> None:
    """Line, offset and length, from a quick block and from one that was read line by line."""
    run = run_dir("r_ok")
    events = events_of(run)
    position = where(events, "partial_saved")
    events.insert(position + 1, {**events[position], "task_id": "stranger"})
    write_events(run, events)
    content = (run / "progress.jsonl").read_bytes()
    for extra in (b"", b"\n"):  # a blank line makes scan look closer
        (run / "progress.jsonl").write_bytes(extra + content)
        notes = lifecycle.finish(fold(lifecycle, scan(run)))
        finding = next(f for f in notes.findings if f.code == "task_not_started")
        assert finding.offset is not None and finding.length is not None
        line = (extra + content)[finding.offset : finding.offset + finding.length]
        assert json.loads(line)["task_id"] == "stranger"
        assert finding.line == position + 2 + len(extra)


ODD = st.one_of(st.none(), st.booleans(), st.integers(-3, 12), st.just(10**400), st.text(max_size=5), st.just([1]))
MEMBERS = st.fixed_dictionaries(
    {"event": st.sampled_from([*SPECIFIED_EVENTS, "tea_break", "records_lost"])},
    optional={
        "task_id": st.sampled_from(["a", "b", None, 7, True]),
        "category": ODD,
        "attempt": ODD,
        "phase": ODD,
        "status": ODD,
        "timestamp": st.one_of(st.floats(), st.integers(-5, 2000), st.just(10**400)),
        "payload": st.dictionaries(
            st.sampled_from(
                [
                    "index",
                    "total",
                    "severity",
                    "total_tasks",
                    "reused_tasks",
                    "tasks_to_run",
                    "reused_severity_counts",
                    "retry",
                    "max_retries",
                    "scope",
                    "error",
                    "request",
                ]
            ),
            st.one_of(ODD, st.dictionaries(st.sampled_from(["error", "execution"]), ODD)),
        ),
    },
)


@settings(max_examples=300, deadline=None)
@given(st.lists(MEMBERS, max_size=25))
def test_any_stream_is_judged_without_a_traceback(events: list[Json]) -> None:
    """Whatever values stand in it; the same stream is always judged the same."""
    stream = records(*events)
    assert codes(stream) == codes(stream)
