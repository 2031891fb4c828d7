"""The progress projection against AgentCompass's own tracker, and both snapshots against the files it wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
import xxhash

from eventstore.stream.scan import scan
from projections import Base, replay
from projections.snapshots import progress
from tests.tools.recorded import BIG, RUNS, Oracle

ALL_RUNS = [*RUNS, BIG]


def _find(name: str, runs_root: Path, request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue("big_run") if name == BIG else runs_root / RUNS[name]


@pytest.mark.parametrize("name", ALL_RUNS)
def test_every_recorded_prefix_gives_agentcompass_own_snapshot(
    name: str, runs_root: Path, oracle: Oracle, request: pytest.FixtureRequest
) -> None:
    """After n events the projection's text is the tracker's text, for every n that the oracle answered."""
    expected = dict(oracle[name])
    assert expected
    state = progress.initial(Base())
    for count, record in enumerate(scan(_find(name, runs_root, request)), 1):
        state = progress.apply(state, record)
        if count in expected:
            assert json.dumps(progress.snapshot(state), ensure_ascii=False) == json.dumps(
                expected.pop(count), ensure_ascii=False
            ), f"after {count} events"
    assert not expected, "the stream ended before the oracle did"


@pytest.mark.parametrize("name", ALL_RUNS)
def test_stored_snapshots_are_reproduced_byte_for_byte(
    name: str, runs_root: Path, request: pytest.FixtureRequest
) -> None:
    """With the stored files as base, folding the stream gives both files again, to the byte."""
    run = _find(name, runs_root, request)
    stored = [(run / file).read_bytes() for file in ("progress.json", "run_info.json")]
    snapshots = replay(scan(run), Base(progress=json.loads(stored[0]), run_info=json.loads(stored[1])))
    assert snapshots.rendered_progress == stored[0]
    assert snapshots.rendered_run_info == stored[1]


@pytest.mark.parametrize("name", ALL_RUNS)
def test_progress_is_rebuilt_without_the_stored_file(
    name: str, runs_root: Path, request: pytest.FixtureRequest
) -> None:
    """From the stream alone everything is right but the tracker's start, which lies at most 10 ms earlier."""
    run = _find(name, runs_root, request)
    stored = json.loads((run / "progress.json").read_bytes())
    rebuilt = replay(scan(run), Base()).progress
    assert rebuilt is not None
    assert 0 <= stored.pop("elapsed_seconds") - rebuilt.pop("elapsed_seconds") <= 0.011
    assert json.dumps(rebuilt) == json.dumps(stored)


@pytest.mark.parametrize(
    "name", [n for n in ALL_RUNS if n not in ("r_resumed", "r_evalerr_reanalysis", "r_kill_early", "p_load")]
)
def test_plans_status_and_error_are_rebuilt_from_the_stream(
    name: str, runs_root: Path, request: pytest.FixtureRequest
) -> None:
    """What the stream proves of run_info.json is right without the file's own word for it."""
    run = _find(name, runs_root, request)
    stored = json.loads((run / "run_info.json").read_bytes())
    start = {key: stored[key] for key in ("schema_version", "run_id", "started_at", "request")}
    rebuilt = replay(scan(run), Base(run_info=start)).run_info
    assert rebuilt is not None
    for key in ("status", "error", "resolved_execution_plans", "request"):
        assert rebuilt.get(key) == stored.get(key), key
    assert ("finished_at" in rebuilt) == ("finished_at" in stored)


def test_plans_of_reused_tasks_have_no_event_and_stay(runs_root: Path) -> None:
    """r_resumed copied 19 tasks' plans from its source: they are in the file only, and replay keeps them."""
    run = runs_root / RUNS["r_resumed"]
    info: dict[str, Any] = json.loads((run / "run_info.json").read_bytes())
    evented = {r.event.task_id for r in scan(run) if type(r.event).__name__ == "ExecutionPlanResolved"}
    assert len(info["resolved_execution_plans"].keys() - evented) >= 9
    assert replay(scan(run), Base(run_info=info)).run_info == info


def test_analysis_only_stream_changes_nothing_in_run_info(runs_root: Path) -> None:
    """A re-analysis describes no evaluation: even with status and plans gone from the file, none are made up."""
    run = runs_root / RUNS["r_evalerr_reanalysis"]
    snapshots = replay(scan(run), Base(run_info={"schema_version": "agentcompass.run_info.v3", "status": "failed"}))
    assert snapshots.analysis_only
    assert snapshots.run_info == {"schema_version": "agentcompass.run_info.v3", "status": "failed"}


def test_evaluation_streams_are_not_taken_for_an_analysis(runs_root: Path) -> None:
    """Every other recorded run is an evaluation, the one that could not load its tasks included."""
    for name, key in RUNS.items():
        if name != "r_evalerr_reanalysis":
            assert not replay(scan(runs_root / key), Base()).analysis_only, name


def test_golden_bytes_for_ever(runs_root: Path) -> None:
    """The same stream gives the same bytes for ever: the digest of all rebuilt snapshots is fixed."""
    digest = xxhash.xxh3_64()
    for key in sorted(RUNS.values()):
        snapshots = replay(scan(runs_root / key), Base())
        digest.update(snapshots.rendered_progress)
        digest.update(snapshots.rendered_run_info)
    assert digest.hexdigest() == GOLDEN_DIGEST


GOLDEN_DIGEST = "83607916c69e061f"
