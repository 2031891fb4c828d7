"""Two processes fold a stream to exactly what one gives."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.format import codec
from eventstore.operations import parallel_replay
from eventstore.stream.scan import Scan, scan
from projections import Base, replay
from tests.projections.test_progress_model import EVENTS
from tests.tools.recorded import BIG, RUNS
from tests.tools.streams import plain_line, sealed_lines


@pytest.fixture(autouse=True)
def small_streams_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream is worth two processes, on any machine."""
    monkeypatch.setattr(parallel_replay, "_worth_while", lambda size: size > 0)


def both(path: Path) -> tuple[Scan, Scan]:
    """The stream folded by one and by two processes; the answers and the scans' accounts are compared."""
    one, two = scan(path), scan(path)
    assert replay(one, Base()) == parallel_replay.replay_stream(two, Base())
    assert (one.records, one.lines, one.verdicts, one.findings, one.tail) == (
        two.records,
        two.lines,
        two.verdicts,
        two.findings,
        two.tail,
    )
    return one, two


def absorbed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each join took from the second process."""
    taken: list[int] = []
    plain = Scan.absorb

    def spy(self: Scan, part: Any) -> None:
        taken.append(part.records)
        plain(self, part)

    monkeypatch.setattr(Scan, "absorb", spy)
    return taken


@pytest.mark.parametrize("name", [*RUNS, BIG])
def test_recorded_runs_fold_alike(name: str, runs_root: Path, request: pytest.FixtureRequest) -> None:
    """Whole runs, killed runs, hostile task ids."""
    run = request.getfixturevalue("big_run") if name == BIG else runs_root / RUNS[name]
    both(run / "progress.jsonl")


def test_second_process_really_takes_its_half(big_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a long clean stream nearly half of the records come from the other process."""
    taken = absorbed(monkeypatch)
    both(big_run / "progress.jsonl")
    assert taken and taken[0] > 4000


def test_sealed_stream_is_chained_over_the_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process begins with the proof of the line before it; the join checks that it was right."""
    taken = absorbed(monkeypatch)
    path = tmp_path / "progress.jsonl"
    start = [plain_line(0, event="run_started"), plain_line(1, event="reuse_loaded")]
    lines = sealed_lines([*start, *(plain_line(n) for n in range(2, 6000))])
    path.write_bytes(b"".join(lines))
    both(path)
    assert taken and taken[0] > 2000
    other = sealed_lines([*start, *(plain_line(n, phase="x") for n in range(2, 6000))])
    path.write_bytes(b"".join(lines[:1500] + other[1500:]))
    one, _ = both(path)
    assert one.verdicts == {"chain_break": 1}


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, min_size=2, max_size=40), st.integers(0, 3))
def test_any_sequence_folds_alike(tmp_path_factory: pytest.TempPathFactory, events: list[Any], repeat: int) -> None:
    """Clamped counters, revived tasks, events that set counters, on either side of the cut."""
    path = tmp_path_factory.mktemp("any") / "progress.jsonl"
    lines = [codec.dump_compact({"run_id": "r", **members}) + b"\n" for members in events]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_replay, "_worth_while", lambda size: True)
        path.write_bytes(b"".join(lines * (repeat + 1)))
        both(path)


def test_random_damage_folds_alike(runs_root: Path, tmp_path: Path) -> None:
    """Damage on either side ends the second process's part; nothing is judged twice or not at all."""
    content = (runs_root / RUNS["r_resumed"] / "progress.jsonl").read_bytes()
    chance = random.Random(5)
    path = tmp_path / "progress.jsonl"
    for _ in range(25):
        data = bytearray(content)
        for _ in range(chance.randrange(3)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(3)] = chance.choice([b"", b"\n", b"}{", b"\0", b"\n\n"])
        path.write_bytes(data)
        both(path)


def test_second_process_that_dies_is_done_without(big_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed by the out-of-memory killer, say: its half is folded here."""
    monkeypatch.setattr(parallel_replay, "_fold_part", lambda *_: 1 / 0)
    taken = absorbed(monkeypatch)
    both(big_run / "progress.jsonl")
    assert not taken


PENDING = 2


@pytest.mark.parametrize(
    ("names", "taken_over"),
    [
        (["task_started"] * PENDING, True),
        (["task_started"] * (PENDING + 1), False),
        (["task_started", "task_finished"], True),
        (["task_finished", "task_started"], False),
    ],
)
def test_a_count_that_would_fall_below_zero_within_the_second_part_stops_the_join(
    names: list[str], taken_over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks pending, none running: starts beyond that, and an end before a start, count from zero again."""
    taken = absorbed(monkeypatch)
    path = tmp_path / "progress.jsonl"
    start = [("run_started", {}), ("tasks_loaded", {"total_tasks": PENDING}), ("attempt_started", {})]
    filler = [("phase_changed", {})] * 2000
    events = [*start, *filler, *filler, *((name, {}) for name in names), *filler[:200]]
    lines = [plain_line(number, event=name, payload=payload) for number, (name, payload) in enumerate(events)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    both(path)
    assert bool(taken) == taken_over
