"""Real AgentCompass 1.0.1 runs, killed at seeded moments: what replay, repair, close and its own reuse make of them.

Each trial ends a run with SIGKILL, either before its n-th change of a file or after a part of its time. Then the record
is replayed, repaired and closed, and AgentCompass starts a new run that reuses it. The new run has the score of an
undisturbed one, and a status that AgentCompass had written is never lost.

COMPASS_ES_CAMPAIGN_TRIALS is the number of trials for each kind of recording (default 3), COMPASS_ES_CAMPAIGN_SEED
their seed. `make campaign` runs 20 of each.
"""

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.tools.agentcompass_side import PYTHON, needs_agentcompass
from tests.tools.commands import Command

ROOT = Path(__file__).parents[2]
TRIALS = int(os.environ.get("COMPASS_ES_CAMPAIGN_TRIALS", "3"))
SEED = int(os.environ.get("COMPASS_ES_CAMPAIGN_SEED", "20261201"))
SINKS = ("reporter", "own sinks")
TASKS = 12
GROUP = "toy_toy_sums_toy_adder"
TERMINAL = ("completed", "failed", "cancelled", "timed_out")

pytestmark = needs_agentcompass


class Undisturbed(NamedTuple):
    """A run that nobody killed: its score, and how much there was to do from the first opening of its stream."""

    metrics: Any
    operations: int
    seconds: float


def evaluate(results: Path, run_id: str, sinks: str, **options: object) -> "subprocess.CompletedProcess[str]":
    """Let AgentCompass evaluate the toy benchmark, to the end or until the process ends itself."""
    told = json.dumps({"tasks": TASKS, "reporter": sinks == "reporter"} | options)
    argv = [PYTHON, str(ROOT / "tests" / "tools" / "agentcompass_toy.py"), str(results), run_id, told]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "TOY_SECONDS": "0.05",
    }
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, cwd=results.parent, env=environment)


def finished(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """Return what an evaluation that ran to its end said of itself."""
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["error"] == ""
    return told


def members(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


@pytest.fixture(scope="module", params=SINKS)
def sinks(request: pytest.FixtureRequest) -> str:
    """Who records: our reporter, or what AgentCompass has of its own."""
    return str(request.param)


@pytest.fixture(scope="module")
def undisturbed(sinks: str, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    results = tmp_path_factory.mktemp("undisturbed") / "results"
    told = finished(evaluate(results, "r1", sinks))
    return Undisturbed(members(results / GROUP / "r1" / "metrics.json"), told["operations"], told["recording_seconds"])


def kill_moment(seed: int, undisturbed: Undisturbed) -> dict[str, float]:
    """Return when to kill a run: before a change of a file, or after a part of its time."""
    moments = random.Random(seed)
    if moments.random() < 0.5:
        return {"die_at_operation": moments.randint(2, undisturbed.operations)}
    return {"die_after": moments.uniform(0, undisturbed.seconds)}


def saved_tasks(run: Path) -> int:
    """Return how many tasks are published without an error."""
    return len([*run.glob("details/normal/*/task.json")])


@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_killed_run_is_recovered_and_reused(
    sinks: str, trial: int, undisturbed: Undisturbed, tmp_path: Path, command: Command
) -> None:
    """The score is that of an undisturbed run, no status of AgentCompass's is lost, and `verify` finds no error."""
    results = tmp_path / "results"
    done = evaluate(results, "r1", sinks, **kill_moment(SEED + trial, undisturbed))
    assert done.returncode in (-9, 0), done.stderr[-3000:]
    run = results / GROUP / "r1"
    info, saved = members(run / "run_info.json"), saved_tasks(run)
    shutil.copytree(run, tmp_path / "as-killed", symlinks=True)
    an_hour_ago = time.time() - 3600  # without a lock file, a stream that changed just now counts as being written
    os.utime(run / "progress.jsonl", (an_hour_ago, an_hour_ago))

    def status_is_kept() -> None:
        assert info.get("status") is None or members(run / "run_info.json").get("status") == info["status"]

    assert command("repair", run, "--apply") == 0, command.err
    status_is_kept()
    assert command("replay", run) == 0, command.out + command.err
    status_is_kept()
    ended = members(run / "progress.json").get("status") in TERMINAL
    assert command("close", run, "--status", info.get("status") or "failed") == int(ended), command.err
    status_is_kept()
    closed = info.get("status") or members(run / "progress.json")["status"]
    assert closed in TERMINAL
    assert [members(run / name)["status"] for name in ("run_info.json", "progress.json")] == [closed] * 2
    command("verify", run, "--json")
    wrong = [found for found in command.document["findings"] if found["severity"] == "error"]
    assert [f"{found['code']}: {found['file']}: {found['message']}" for found in wrong] == []

    again = finished(evaluate(results, "r2", sinks, reuse_run_id="r1"))
    reused = results / GROUP / "r2"
    assert again["error"] == ""
    assert members(reused / "metrics.json") == undisturbed.metrics
    progress = members(reused / "progress.json")
    assert (progress["status"], progress["total_tasks"]) == ("completed", TASKS)
    assert progress["reused_tasks"] >= saved
    status_is_kept()
