"""SQL's tasks, attempts and retries against a plain fold that shares nothing with ours."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore.format import codec
from eventstore.format.events import ENVELOPE
from eventstore.history.sql.access import CatalogChoice, open_history
from tests.tools.plain_timeline import PlainTimeline
from tests.tools.recorded import ROOT, RUNS

Rows = dict[str, list[dict[str, Any]]]
TIMES = ("started_at", "finished_at", "last_event_at", "retried_at")
DURATIONS = ("seconds", "discarded_seconds")
GOING_ON = ("nothing", "died", "running")
"""What SQL says of an attempt that no event ended; it takes from other files which of them it is."""


def read_events(run: Path) -> list[dict[str, Any]]:
    lines = (run / "progress.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def plain_rows(events: list[dict[str, Any]]) -> Rows:
    plain = PlainTimeline(events)
    return {"tasks": plain.tasks(), "attempts": plain.attempts(), "retries": plain.retries()}


def sql_rows(root: Path) -> dict[str, Rows]:
    """The three views of every run below a root, with times and durations in microseconds."""
    connection = open_history([root], catalog=CatalogChoice(off=True))
    found: dict[str, Rows] = {}
    try:
        for (path,) in connection.execute("SELECT path FROM runs").fetchall():
            found[str(path)] = {"tasks": [], "attempts": [], "retries": []}
        for view in ("tasks", "attempts", "retries"):
            names = [row[0] for row in connection.execute(f"DESCRIBE {view}").fetchall()]
            columns = [f"epoch_us({view}.{name})" if name in TIMES else f"{view}.{name}" for name in names]
            sql = f"SELECT runs.path, {', '.join(columns)} FROM {view} JOIN runs USING (run_key)"
            for path, *values in connection.execute(sql).fetchall():
                found[path][view].append(dict(zip(names, values, strict=True)))
    finally:
        connection.close()
    return found


def comparable(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    made = []
    for whole in rows:
        row = {name: whole[name] for name in names}
        for name in set(DURATIONS) & row.keys():
            row[name] = None if row[name] is None else round(row[name] * 1e6)
        if row.get("ended_by") in GOING_ON:
            row["ended_by"] = row["finished_at"] = None
        made.append(repr(row))
    return sorted(made)


def check(root: Path, at_least: int) -> None:
    found = sql_rows(root)
    assert len(found) >= at_least
    for path, views in found.items():
        for view, wanted in plain_rows(read_events(Path(path))).items():
            names = list(wanted[0]) if wanted else []
            assert comparable(views[view], names) == sorted(map(repr, wanted)), f"{view} of {path}"
            assert all(row["seconds"] is None for row in views[view] if row.get("clock_stepped"))


def test_recorded_runs_have_the_rows_of_the_plain_fold() -> None:
    """Every column that a stream makes, of every run."""
    check(ROOT, len(RUNS))


def some(chance: random.Random, *values: Any) -> Any:
    return chance.choice(values)


def stream(seed: int) -> Iterator[dict[str, Any]]:
    """Events in no good order: what never began ends, what ended goes on, ids are missing, the clock steps back."""
    chance = random.Random(seed)
    now = 1_700_000_000.25
    names = ["task_started", "task_finished", "attempt_started", "attempt_finished", "attempt_retry", "partial_saved"]
    names += ["phase_changed"] * 4 + ["execution_plan_resolved", "records_lost", "tasks_loaded"]
    orderly = chance.random() < 0.4
    for number in range(chance.randrange(1, 70)):
        now += chance.choice([0.0, 0.001, 1.5, 30.0, -2.0 if not orderly else 2.0])
        name = chance.choice(names) if chance.random() > 0.01 else "run_finished"
        members: dict[str, Any] = dict.fromkeys(ENVELOPE) | {"run_id": "r", "event": name, "timestamp": now}
        members |= {"task_id": some(chance, "a", "b", "c", None), "category": some(chance, "x", "y", None)}
        members |= {"attempt": some(chance, 1, 1, 2, None), "phase": some(chance, "plan", "plan", "evaluate", None)}
        members["status"] = some(chance, "completed", "failed", None)
        payload: dict[str, Any] = {}
        if name in ("task_started", "task_finished"):
            payload = {"index": number, "severity": some(chance, "", "error", None)}
        elif name == "attempt_retry":
            payload = {"retry": number, "max_retries": 9, "stage": some(chance, "run", None), "scope": "attempt"}
            payload |= {"matched_pattern": some(chance, "429", None), "retry_delay_seconds": some(chance, 0.5, 2, None)}
        yield members | {"payload": payload}


@pytest.mark.parametrize("part", range(4))
def test_generated_streams_have_the_rows_of_the_plain_fold(part: int, tmp_path: Path) -> None:
    """Fifty runs at a time, by seed."""
    for seed in range(part * 50, part * 50 + 50):
        run = tmp_path / f"seed{seed:03}"
        run.mkdir()
        lines = [codec.dump_compact(event).rstrip(b"\n") + b"\n" for event in stream(seed)]
        (run / "progress.jsonl").write_bytes(b"".join(lines))
    check(tmp_path, 50)
