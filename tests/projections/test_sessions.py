"""Sessions of several processes in one stream: a border ends what is in flight, bookkeeping is no observation."""

from pathlib import Path
from typing import Any

import pytest

from eventstore.stream.scan import Scan, scan
from projections import Base, fold, sessions
from projections.snapshots import counts, progress
from projections.timeline import board, milestones, timeline
from projections.timeline.in_flight import in_flight
from projections.timeline.timeline import open_phases
from projections.verify import lifecycle
from tests.tools.sessions import Oracle, Sessions, dump, event, random_sessions, write_stream, writer

BEGINNING = [
    event("run_started", 1000.0),
    event("tasks_loaded", 1000.0, payload={"total_tasks": 2}),
    event("task_started", 1001.0, "a", payload={"index": 0, "total": 2}),
    event("attempt_started", 1001.0, "a", attempt=1),
    event("phase_changed", 1001.5, "a", attempt=1, phase="run_task"),
    event("task_started", 1002.0, "b", payload={"index": 1, "total": 2}),
]
AGAIN = [
    event("task_started", 11002.0, "a", payload={"index": 0, "total": 2}),
    event("attempt_started", 11002.0, "a", attempt=1),
    event("phase_changed", 11003.0, "a", attempt=1, phase="run_task"),
    event("attempt_finished", 11004.0, "a", attempt=1, status="completed"),
]
CLOSED = {"closed": {"life": "dead", "evidence": ["there is no process 7"]}}


def state_of(module: Any, path: Path) -> Any:
    """The fold of a stream."""
    return fold(module, scan(path), Base())


def counted(path: Path) -> dict[str, int]:
    """The counters that tell where tasks are."""
    state = state_of(progress, path).counts
    return {name: getattr(state, f"{name}_tasks") for name in ("pending", "running", "finished")}


def test_tasks_in_flight_go_back_to_pending_where_another_process_goes_on(tmp_path: Path) -> None:
    """A resumed run counts each task once: the one begun again runs, the other one waits."""
    path = write_stream(tmp_path, [(writer(1), BEGINNING), (writer(2), AGAIN[:1])])
    assert counted(path) == {"pending": 1, "running": 1, "finished": 0}
    assert list(counts.active_tasks(state_of(counts, path))) == ["a"]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param((writer(1), AGAIN[:1]), id="same-process"),
        pytest.param((writer(2, owns=False), AGAIN[:1]), id="keeps-no-run-info"),
        pytest.param((writer(2), [event("stream_repaired", 2000.0)]), id="only-repairs"),
        pytest.param((writer(2), [event("partial_saved", 2000.0, "a")]), id="only-tells-what-was-saved"),
    ],
)
def test_no_border_ends_nothing(tmp_path: Path, second: Any) -> None:
    """A reporter that attaches again, a repair, a writer that doesn't keep run_info.json: tasks stay in flight."""
    path = write_stream(tmp_path, [(writer(1), BEGINNING), second])
    assert "b" in counts.active_tasks(state_of(counts, path))
    assert not [row for row in state_of(timeline, path).phases if row.ended_by == "died"]


def test_lines_of_agentcompass_have_no_border(tmp_path: Path) -> None:
    """Without sessions everything is folded as its tracker does: a task that starts twice runs twice."""
    path = write_stream(tmp_path, [(None, [*BEGINNING, *AGAIN[:1]])])
    assert counted(path) == {"pending": 0, "running": 3, "finished": 0}


def test_a_phase_that_a_death_interrupted_ends_with_the_last_record_before_it(tmp_path: Path) -> None:
    """Not 9,999 s until the next process began: 0.5 s, ended by a death; the attempt lasts what was worked on it."""
    rows = state_of(timeline, write_stream(tmp_path, [(writer(1), BEGINNING), (writer(2), AGAIN)]))
    first, second = sorted(rows.phases, key=lambda row: row.seq)
    assert (first.ended_by, first.ended_at, first.seconds, first.ended_seq) == ("died", 1002.0, 0.5, 5)
    assert (second.ended_by, second.seconds) == ("attempt_finished", 1.0)
    attempt = rows.attempts["a", 1]
    assert (attempt.ended_by, attempt.starts, attempt.seconds) == ("attempt_finished", 2, 3.0)


def test_a_resumed_run_is_no_error_and_no_silence(tmp_path: Path) -> None:
    """`verify` neither says that a task started twice nor that nothing happened for hours."""
    state = lifecycle.initial(Base())
    for block in scan(write_stream(tmp_path, [(writer(1), BEGINNING), (writer(2), AGAIN)])).blocks():
        lifecycle.apply_block(state, block)
    notes = lifecycle.finish(state)
    assert not notes.counts.keys() & {"task_started_twice", "attempt_started_twice", "silent_gap", "clock_back"}
    assert {f.task_id for f in notes.findings if f.code == "task_in_flight"} == {"a", "b"}


@pytest.mark.parametrize("closer", [writer(9, owns=False), writer(1)])
def test_a_close_hours_later_lengthens_nothing(tmp_path: Path, closer: dict[str, Any]) -> None:
    """What was in flight ended when the run died; the time of the closing is nobody's duration."""
    late = [
        event("stream_repaired", 90_000.0),
        event("run_finished", 109_000.0, status="failed", payload=CLOSED),
        event("metric_artifacts_written", 200_000.0),
    ]
    path = write_stream(tmp_path, [(writer(1), BEGINNING), (closer, late)])
    rows, marks, shown = (state_of(module, path) for module in (timeline, milestones, board))
    (stay,) = rows.phases
    assert (stay.ended_by, stay.ended_at, stay.seconds) == ("died", 1002.0, 0.5)
    assert [(f.task_id, f.attempt, f.duration_seconds) for f in in_flight(rows)] == [("a", 1, 1.0), ("b", None, 0.0)]
    assert in_flight(rows) == in_flight(shown.rows)
    assert (marks.longest_gap_seconds, shown.longest_gap_seconds, marks.last_timestamp) == (1.0, 1.0, 1002.0)
    assert marks.closed == sessions.Closing("dead", ["there is no process 7"])
    assert state_of(counts, path).last_observed_at == 1002.0


def test_a_clock_that_steps_back_gives_no_length(tmp_path: Path) -> None:
    """A phase that ended before it began has no seconds, and no mean counts it."""
    path = write_stream(tmp_path, [(writer(1), [*BEGINNING, event("phase_changed", 900.0, "a", attempt=1, phase="x")])])
    rows = state_of(timeline, path)
    assert [row.seconds for row in rows.phases] == [None]
    assert all(found.duration_seconds is None or found.duration_seconds >= 0 for found in in_flight(rows))


# -- generated streams


def stays_of(path: Path) -> list[tuple[Any, ...]]:
    """All stays in phases that a stream tells of, as the oracle has them."""
    rows = state_of(timeline, path)
    found = [*rows.phases, *open_phases(rows)]
    return [(row.task_id, row.attempt, row.phase, row.started_at, row.ended_at, row.ended_by) for row in found]


def problem_of(path: Path, parts: Sessions) -> str | None:
    """Where ours and the oracle disagree, in words; None where they don't."""
    said = Oracle(parts)
    ours = counted(path)
    if ours != {"pending": said.pending, "running": said.running, "finished": said.finished}:
        return f"counts {ours}, and {said.pending}, {said.running}, {said.finished}"
    stays = [*said.stays, *((*key, phase, at, None, None) for key, (phase, at) in said.open_stays.items())]
    if sorted(stays, key=repr) != sorted(stays_of(path), key=repr):
        return f"stays {stays_of(path)}, and {stays}"
    state, marks = state_of(counts, path), state_of(milestones, path)
    if (state.first_observed_at, state.last_observed_at) != (said.first, said.last):
        return f"times {state.first_observed_at} to {state.last_observed_at}, and {said.first} to {said.last}"
    if (marks.first_timestamp, marks.last_timestamp) != (said.first, said.last):
        return "the milestones have other times"
    if marks.longest_gap_seconds != max(said.gaps):
        return f"longest gap {marks.longest_gap_seconds}, and {max(said.gaps)}"
    for row in [*state_of(timeline, path).attempts.values(), *state_of(timeline, path).phases]:
        if row.seconds is not None and row.seconds < 0:
            return f"negative: {row}"
    return None


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_generated_runs_of_several_sessions_say_what_a_plain_oracle_says(tmp_path: Path, start: int) -> None:
    """Deaths, repairs, closings, clock steps, late events: counts, stays, first and last times, gaps."""
    for seed in range(start, start + 100):
        parts = random_sessions(seed)
        problem = problem_of(write_stream(tmp_path / str(seed), parts), parts)
        assert problem is None, f"seed {seed}: {problem}\n{dump(parts)}"


def test_generated_runs_have_no_damage(tmp_path: Path) -> None:
    """What the generator writes is what the library writes: sealed, chained, whole."""
    for seed in range(50):
        found = Scan(write_stream(tmp_path / str(seed), random_sessions(seed)))
        assert sum(len(block.heads) for block in found.blocks()) and not found.verdicts
