"""The test data itself: complete, readable, unchanged, and what its README says."""

import json
from pathlib import Path

import pytest

from tests.tools.recorded import BIG, BIG_KEY, RUNS, key_of

LINES = {
    "k3/20261129_143950": 80,
    "p_429": 245,
    "p_clock": 185,
    "p_grader": 185,
    "p_load": 2,
    "r_big": 9254,
    "r_evalerr": 155,
    "r_evalerr_reanalysis": 34,
    "r_kill_early": 5,
    "r_kill_mid": 400,
    "r_odd": 177,
    "r_ok": 65,
    "r_resumed": 1285,
    "r_retry": 317,
    "r_retry2": 387,
    "r_sigterm": 200,
    "r_surrogate": 41,
    "r_warn": 140,
    "small-easy/20261129_143950": 95,
}


def test_every_recorded_run_is_here_with_all_its_lines(run_dir):
    """All nineteen runs can be had by name, and each stream has the lines it was recorded with."""
    assert {*RUNS, BIG} == set(LINES)
    assert {name: (run_dir(name) / "progress.jsonl").read_bytes().count(b"\n") for name in LINES} == LINES


def test_a_copy_is_fresh_writable_and_equal_to_the_recorded_run(run_dir, runs_root):
    """Two copies of a run never share a file, and hold what was recorded."""
    first, second = run_dir("r_ok"), run_dir("r_ok")
    (first / "progress.jsonl").write_bytes(b"")
    recorded = runs_root / key_of("r_ok")
    files = [path.relative_to(recorded) for path in recorded.rglob("*") if path.is_file()]
    assert files
    assert all((second / file).read_bytes() == (recorded / file).read_bytes() for file in files)


def test_a_run_can_be_named_by_its_path_and_an_unknown_name_lists_all():
    """Names that two runs share are told apart by their path below the root."""
    assert key_of("r_ok") == key_of("toy-7b_toy_arith_openai_chat/r_ok") == RUNS["r_ok"]
    assert key_of("r_big") == BIG_KEY
    assert key_of("k3/20261129_143950") != key_of("small-easy/20261129_143950")
    with pytest.raises(KeyError, match="r_kill_mid"):
        key_of("20261129_143950")


@pytest.mark.parametrize("name", LINES)
def test_the_oracle_ends_where_the_stream_ends_and_skips_no_prefix_of_a_small_one(oracle, name):
    """Golden snapshots exist for the whole stream of each run, and for every prefix of those below 700 events."""
    counts = [events for events, _ in oracle[name]]
    assert counts[-1] == LINES[name]
    assert counts == sorted(set(counts))
    assert len(counts) == LINES[name] or LINES[name] >= 700


@pytest.mark.parametrize("name", LINES)
def test_the_oracle_agrees_with_the_stored_snapshot_but_for_the_start(oracle, run_dir, name):
    """A stored `progress.json` is the oracle's snapshot at some event; only `elapsed_seconds` knows another start."""
    stored = json.loads((run_dir(name) / "progress.json").read_text(encoding="utf-8"))
    rows = [snapshot for _, snapshot in oracle[name] if snapshot["updated_at"] == stored["updated_at"]]
    assert rows, "no snapshot with the stored time"
    for row in (*rows, stored):
        row.pop("elapsed_seconds")
    assert json.dumps(stored, ensure_ascii=False) in [json.dumps(row, ensure_ascii=False) for row in rows]


def test_no_recorded_file_is_larger_than_a_megabyte(runs_root: Path):
    """The repository stays small: what is larger is packed."""
    assert max(path.stat().st_size for path in runs_root.parent.rglob("*") if path.is_file()) < 1 << 20
