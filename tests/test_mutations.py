"""One small random change to one file of a sound run: is it found?

The whole campaign, with the rates that docs/rules.md gives:

    COMPASS_ES_MUTATIONS=10000 python -m pytest -s tests/test_mutations.py
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from eventstore.operations.verify.verify import NOT_TO_THE_END, Options, verify_run
from eventstore.run.directory import RunDir
from projections.snapshots.counts import COUNTERS
from tests.tools import breaking
from tests.tools.mutating import mutated
from tests.tools.recording import record_run

COUNT = int(os.environ.get("COMPASS_ES_MUTATIONS", "400"))
SEED = int(os.environ.get("COMPASS_ES_MUTATION_SEED", "20260729"))
SOURCES = ("r_ok", "r_retry2", "r_evalerr", "p_429", "r_kill_mid", "r_odd")
QUICK = Options(secrets="none")


def counts(run: Path) -> Counter[str]:
    report = verify_run(RunDir(run, run.name), QUICK)
    assert not [finding for finding in report.findings if finding.message.startswith(NOT_TO_THE_END)]
    return Counter(report.counts)


def _sealed(run: Path) -> None:
    breaking.seal_stream(run)


def _with_artifacts(run: Path) -> None:
    breaking.add_artifacts(run)


def test_every_change_to_a_sealed_line_or_a_manifested_artifact_is_found(run_dir: Callable[[str], Path]) -> None:
    """All of them, whatever was changed and where."""
    run = run_dir("r_ok")
    _sealed(run)
    _with_artifacts(run)
    sound = counts(run)
    random = Random(SEED)
    for _ in range(COUNT // 2):
        with mutated(run, random, random.choice(["stream", "artifact"])) as mutation:
            assert counts(run) != sound, mutation
    assert counts(run) == sound


def test_every_change_to_a_stream_of_our_recorder_is_found(tmp_path: Path) -> None:
    """A lost end as well: the witness knows how far the stream was safe, and the snapshot knows the end."""
    run = tmp_path / "r"
    record_run(run)
    sound = counts(run)
    random = Random(SEED)
    for _ in range(COUNT // 2):
        with mutated(run, random, "stream") as mutation:
            assert counts(run) != sound, mutation
    assert counts(run) == sound


def test_rates_of_small_changes(run_dir: Callable[[str], Path]) -> None:
    """A lower bound for each kind of file that holds facts; no change is a traceback, and none outlives itself."""
    found: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    missed: Counter[tuple[str, str]] = Counter()
    random = Random(SEED)
    runs = [run_dir(name) for name in SOURCES]
    sound = {run: counts(run) for run in runs}
    for _ in range(COUNT):
        run = random.choice(runs)
        with mutated(run, random) as mutation:
            tried[mutation.kind] += 1
            if counts(run) != sound[run]:
                found[mutation.kind] += 1
            else:
                missed[mutation.kind, mutation.change] += 1
    assert {run: counts(run) for run in runs} == sound
    for kind in sorted(tried):
        missing = {change: number for (of, change), number in sorted(missed.items()) if of == kind}
        print(f"{kind:16} {found[kind]:6} of {tried[kind]:6} {found[kind] / tried[kind]:7.1%}  missed: {missing}")
    for kind, rate in {"progress.json": 0.6, "run_info.json": 0.6, "params.json": 0.7, "stream": 0.6}.items():
        assert found[kind] >= rate * tried[kind], (kind, found[kind], tried[kind])


TWO_PLACES: list[tuple[str, str, breaking.Breaker]] = [
    ("r_ok", "progress.json run_id", breaking.edit_progress(run_id="x")),
    ("r_ok", "progress.json model", breaking.edit_progress(model="x")),
    ("r_ok", "progress.json status", breaking.edit_progress(status="failed")),
    ("r_ok", "progress.json updated_at", breaking.edit_progress(updated_at=1.5)),
    ("r_ok", "progress.json current_phase_counts", breaking.edit_progress(current_phase_counts={"plan": 1})),
    ("r_kill_mid", "progress.json active_tasks", breaking.edit_progress(active_tasks={})),
    ("r_ok", "run_info.json run_id", breaking.edit_info(run_id="x")),
    ("r_ok", "run_info.json status", breaking.edit_info(status="cancelled")),
    ("p_load", "run_info.json error", breaking.edit_info(error="x")),
    ("r_ok", "run_info.json finished_at", breaking.edit_info(finished_at="2026-11-29T14:32:24+00:00")),
    ("r_ok", "output.run_id", breaking.edit_file("run_info.json", lambda i: i["request"]["output"].update(run_id="x"))),
    (
        "r_ok",
        "execution.attempts",
        breaking.edit_file("run_info.json", lambda i: i["request"]["execution"]["attempts"].update(k=7)),
    ),
    (
        "r_retry2",
        "max_retries",
        breaking.edit_file("run_info.json", lambda i: i["request"]["execution"].update(max_retries=7)),
    ),
    (
        "r_ok",
        "metric_artifacts.report",
        breaking.edit_file("run_info.json", lambda i: i["metric_artifacts"]["report"].update(k=7)),
    ),
    ("r_ok", "metrics.json strategy", breaking.edit_file("metrics.json", lambda m: m.update(strategy="x"))),
    ("r_ok", "params.json base_url", breaking.edit_file("params.json", lambda p: p["model"].update(base_url="x"))),
    ("r_ok", "params.json benchmark", breaking.edit_file("params.json", lambda p: p["benchmark"].update(id="x"))),
    ("r_ok", "task.json task_id", breaking.edit_task("task.json", lambda task: task.update(task_id="x"))),
    ("r_retry2", "result.json retry_count", breaking.edit_task("*1/result.json", lambda r: r.update(retry_count=9))),
    ("r_ok", "checkpoint.json source_run_id", breaking.edit_evaluation(lambda e: e.update(source_run_id="x"))),
    ("r_ok", "checkpoint.json run_result", breaking.edit_evaluation(lambda e: e["run_result"].update(task_id="x"))),
    *(
        (
            "r_ok",
            f"run_info.json {name}",
            breaking.edit_file("run_info.json", lambda i, n=name: i["request"][n].update(id="x")),
        )  # type: ignore[misc]
        for name in ("model", "benchmark", "harness", "environment")
    ),
    *(
        (
            "r_kill_mid",
            f"progress.json {name}",
            breaking.edit_file("progress.json", lambda p, n=name: p.update({n: p[n] + 1}), False),
        )  # type: ignore[misc]
        for name in COUNTERS
    ),
]


@pytest.mark.parametrize(("name", "what", "change"), TWO_PLACES, ids=[what for _, what, _ in TWO_PLACES])
def test_what_stands_in_two_places_is_always_found(
    name: str, what: str, change: breaking.Breaker, run_dir: Callable[[str], Path]
) -> None:
    """The fields that docs/rules.md lists, changed in one place, give an error (a time a warning)."""
    run = run_dir(name)
    sound = counts(run)
    change(run)
    report = verify_run(RunDir(run, run.name), QUICK)
    new = [finding for finding in report.findings if report.counts[finding.code] > sound[finding.code]]
    assert any(finding.severity == ("warning" if "finished_at" in what else "error") for finding in new), what
