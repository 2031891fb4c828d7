"""The newest `generated_at` wins among records of metric artifacts, whichever comes last in the stream or the file."""

import itertools
from typing import Any

import pytest

from eventstore.format import codec
from eventstore.format.records import Recorded
from projections import Base, fold
from projections.snapshots import run_info
from projections.snapshots.run_info import newest_artifacts

EARLY, MIDDLE, LATE = "2026-01-01T12:00:00+00:00", "2026-01-01T14:30:00+02:00", "2026-01-01T05:00:00-08:00"
"""In order of time, and not in order of text."""


def artifacts(generated_at: Any, **members: Any) -> dict[str, Any]:
    return {"generated_at": generated_at, "source": "evaluation"} | members


def record(seq: int, payload: dict[str, Any], event: str = "metric_artifacts_written") -> Recorded:
    line = codec.dump_compact({"run_id": "r", "event": event, "timestamp": 1.0 + seq, "payload": payload}) + b"\n"
    return Recorded(seq=seq, event=codec.decode(line), line=line, line_number=seq + 1)


@pytest.mark.parametrize("order", list(itertools.permutations([EARLY, MIDDLE, LATE])))
def test_the_newest_wins_in_a_stream_and_against_the_file(order: tuple[str, ...]) -> None:
    """Times are compared as moments; the file's record is one of those that compete."""
    started = record(0, {}, "attempt_started")
    records = [started, *(record(1 + n, artifacts(moment)) for n, moment in enumerate(order))]
    assert run_info.record(fold(run_info, records))["metric_artifacts"] == artifacts(LATE)
    stored = Base(run_info={"metric_artifacts": artifacts(order[0])})
    of_both = run_info.record(fold(run_info, records[:1] + records[2:], stored))
    assert of_both["metric_artifacts"] == artifacts(LATE)


@pytest.mark.parametrize(
    ("one", "other", "wins"),
    [
        (artifacts(EARLY), artifacts("yesterday"), 0),
        (artifacts(None), artifacts(EARLY), 1),
        (artifacts(7), artifacts("x", k=1), 0),
        ({}, artifacts(None), 1),
        ([], artifacts(EARLY), 1),
        (artifacts(EARLY), None, 0),
    ],
)
def test_a_record_without_a_moment_loses_against_one_with_it(one: Any, other: Any, wins: int) -> None:
    """What is no record at all loses against any; among equals the first one stays."""
    assert newest_artifacts(one, other) == (one, other)[wins]


def test_nothing_is_told_where_nobody_wrote_any() -> None:
    """Neither file nor stream."""
    assert newest_artifacts(None, {}) is None
