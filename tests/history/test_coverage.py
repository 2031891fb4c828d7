"""What counts for a score, in SQL: the columns of `runs`, `results.outcome` and the question `success-rate`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.tools.commands import Command

Copy = Callable[[str], Path]


def test_an_outage_is_counted_and_gives_no_rate(run_dir: Copy, command: Command) -> None:
    """Every model call answered 429: nothing was answered, n of N says so, and no number is made up."""
    run = run_dir("p_429")
    sql = "SELECT score, answered, infrastructure_failed, never_run, score_answered FROM runs"
    assert command("query", sql, run, "--no-catalog", "--json") == 0
    (row,) = json.loads(command.out)
    assert row == {
        "score": None,
        "answered": 0,
        "infrastructure_failed": 12,
        "never_run": 0,
        "score_answered": None,
    }
    assert command("query", "success-rate", run, "--no-catalog", "--json") == 0
    (row,) = json.loads(command.out)
    assert (row["n"], row["planned"], row["infrastructure_failed"], row["rate"]) == (0, 12, 12, None)
    assert row["reason"] == "no attempt was answered with this metric"


def test_a_model_without_details_is_listed(run_dir: Copy, command: Command) -> None:
    """With n = 0 and the reason; its planned attempts are known from the stream."""
    run = run_dir("r_ok")
    shutil.rmtree(run / "details")
    assert command("query", "success-rate", run, "--no-catalog", "--json") == 0
    (row,) = json.loads(command.out)
    assert (row["model"], row["n"], row["planned"], row["rate"]) == ("toy-7b", 0, 4, None)
    assert row["reason"] == "the task details are not stored"
    sql = "SELECT answered, never_run FROM runs"
    assert command("query", sql, run, "--no-catalog", "--json") == 0
    assert json.loads(command.out) == [{"answered": None, "never_run": None}]


def test_the_attempts_of_a_killed_run_add_up(run_dir: Copy, command: Command) -> None:
    """60 tasks of k = 2: what has no published result was never run, whatever lies under running/."""
    run = run_dir("r_kill_mid")
    sql = "SELECT outcome, count(*) AS n FROM results GROUP BY ALL ORDER BY ALL"
    assert command("query", sql, run, "--no-catalog", "--json") == 0
    counted = {row["outcome"]: row["n"] for row in json.loads(command.out)}
    sql = "SELECT answered, infrastructure_failed, never_run, total_tasks * attempts_k AS planned FROM runs"
    assert command("query", sql, run, "--no-catalog", "--json") == 0
    (row,) = json.loads(command.out)
    assert (row["answered"], row["infrastructure_failed"], row["never_run"], row["planned"]) == (15, 3, 102, 120)
    assert (counted["answered"], counted["infrastructure_failed"]) == (15, 3)
