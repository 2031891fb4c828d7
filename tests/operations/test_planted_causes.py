"""Real runs whose cause is known: what `diagnose` names first, how sure it is, and what it says of the score."""

from pathlib import Path

import pytest

from eventstore.operations.diagnose.diagnose import diagnose_run
from tests.tools.recorded import unpack

CAUSES = {
    "dns-failure": ("completed", "model_unreachable", "certain", "model"),
    "grader-hangs-deadline": ("timed_out", "grader_stuck", "inferred", "grader"),
    "grader-sys-exit": ("cancelled", "stopped_by_user", "inferred", "unknown"),
    "harness-cleanup-exception": ("completed", "cleanup_failed", "certain", "harness"),
    "reuse-estimate-wrong": ("failed", "setup_failed", "certain", "infrastructure"),
    "fsize-limit-reporter": ("failed", "disk_full", "certain", "infrastructure"),
    "completed-but-stream-cut-reporter": ("completed", "records_stopped", "certain", "infrastructure"),
}
ANSWERED = {
    "dns-failure": (0, 12, 12, 0, False),
    "grader-hangs-deadline": (29, 30, 0, 1, False),
    "grader-sys-exit": (8, 24, 0, 16, False),
    "harness-cleanup-exception": (12, 12, 0, 0, True),
    "reuse-estimate-wrong": (4, 16, 12, 0, False),
    "fsize-limit-reporter": (32, 48, 0, 16, False),
    "completed-but-stream-cut-reporter": (48, 48, 0, 0, True),
}
"""Answered, planned, failed by infrastructure, never run; whether the score can be used."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("causes", tmp_path_factory.mktemp("causes"))


@pytest.mark.parametrize("name", CAUSES)
def test_the_known_cause_is_named_first(name: str, runs: Path) -> None:
    """With no more certainty than a record gives: nothing says that a person stopped the run."""
    report = diagnose_run(runs / name / "run")
    first = report["causes"][0]
    assert (report["outcome"], first["code"], first["certainty"], first["blame"]) == CAUSES[name]
    if name == "harness-cleanup-exception":
        assert first["tasks"] == 12


@pytest.mark.parametrize("name", ANSWERED)
def test_what_was_answered_is_said_with_the_score(name: str, runs: Path) -> None:
    """n of N, from the one definition; a score without an answered attempt is not usable."""
    score = diagnose_run(runs / name / "run")["score"]
    counted = tuple(score[part] for part in ("answered", "planned", "infrastructure_failed", "never_run", "usable"))
    assert counted == ANSWERED[name]
