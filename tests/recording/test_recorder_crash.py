"""SIGKILL at random moments: what was acknowledged is in the stream, and the next session simply goes on.

The size of the campaign comes from COMPASS_ES_CRASH_TRIALS (kills; default 24), its seed from COMPASS_ES_CRASH_SEED.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eventstore.operations.replay import replay_run
from eventstore.recording.recorder import RunRecorder
from eventstore.stream.scan import scan
from tests.tools.crash_writer import REQUEST, filler

ROOT = Path(__file__).parents[2]
TRIALS = int(os.environ.get("COMPASS_ES_CRASH_TRIALS", "24"))
SEED = int(os.environ.get("COMPASS_ES_CRASH_SEED", "20261129"))
SESSIONS = 4
"""Kills in one directory after another."""


def run_until_killed(run_dir: Path, seed: int, durability: str, seconds: float) -> list[int]:
    """Start the writer, kill it `seconds` after its first acknowledgement, and give back what it acknowledged."""
    argv = [sys.executable, str(ROOT / "tests" / "tools" / "crash_writer.py"), str(run_dir), str(seed), durability]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        acknowledged, deadline, end = b"", time.monotonic() + 60, None
        while end is None or time.monotonic() < end:
            acknowledged += process.stdout.read() or b""
            if end is None and (acknowledged or seconds < 0):
                end = time.monotonic() + abs(seconds)
            assert process.poll() is None, "the writer ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.set_blocking(process.stdout.fileno(), True)
        acknowledged += process.stdout.read()
    return [int(number) for number in acknowledged.split(b"\n")[:-1]]


def check_stream(run_dir: Path, seed: int, acknowledged: list[int]) -> None:
    """Every acknowledged event is there, whole; nothing is wrong but a torn tail."""
    found = scan(run_dir)
    texts = {}
    for record in found:
        event = json.loads(record.line)
        assert record.line.count(b'"log":{') == 1, "glued"
        if event["event"] == "phase_changed":
            texts[int(event["task_id"])] = event["payload"]["x"]
    assert set(found.verdicts) <= {"torn_tail"}, found.findings
    assert set(acknowledged) <= set(texts)
    assert all(text == filler(number, seed) for number, text in texts.items())


def check_reopened(run_dir: Path) -> None:
    """Opening heals, and both snapshots say what the fold of the stream says."""
    with RunRecorder.open(run_dir) as run:
        told = run.progress
    replayed = replay_run(run_dir, write=False)
    assert dict(replayed.verdicts) == {}
    assert replayed.snapshots.progress == told
    assert replayed.changed == []


@pytest.mark.parametrize("series", range(-(-TRIALS // SESSIONS)))
def test_nothing_acknowledged_is_lost_by_a_kill_and_the_next_session_goes_on(tmp_path, series):
    """Killed again and again in one directory, with four threads writing lines of up to a megabyte."""
    dice = random.Random(SEED * 1000 + series)
    seed, run_dir = dice.randrange(10**6), tmp_path / "run"
    acknowledged: list[int] = []
    for _ in range(SESSIONS):
        durability = dice.choice(["os", "group", "always"])
        seconds = dice.choice([0.0, dice.random() * 0.02, dice.random() * 0.3])
        acknowledged += run_until_killed(run_dir, seed, durability, seconds)
        check_stream(run_dir, seed, acknowledged)
    check_reopened(run_dir)


@pytest.mark.parametrize("series", range(-(-TRIALS // (4 * SESSIONS))))
def test_a_kill_while_the_run_is_being_created_leaves_something_that_can_be_opened_or_nothing(tmp_path, series):
    """Whatever the moment: no directory, an empty one, one with `run_info.json` alone, or a run."""
    dice = random.Random(SEED * 7 + series)
    for number in range(SESSIONS):
        run_dir = tmp_path / str(number)
        run_until_killed(run_dir, 1, "group", -(0.05 + dice.random() * 0.25))
        if (run_dir / "run_info.json").exists():
            check_reopened(run_dir)
        else:
            RunRecorder.create(run_dir, request=REQUEST).close()
