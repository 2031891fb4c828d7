"""`verify` and what a catalog has seen: a stream that was rewritten as a whole gives itself away by nothing else."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.format.events import TaskStarted
from eventstore.history.catalog import seen_prefixes
from eventstore.history.catalog.seen_prefixes import known_prefixes
from eventstore.history.sql.access import index
from eventstore.operations.close import close_run
from eventstore.operations.repair.repair import repair_run
from eventstore.operations.verify.verify import Options, verify_run, verify_runs
from eventstore.recording.recorder import RunRecorder
from eventstore.run.directory import RunDir
from tests.tools import breaking
from tests.tools.commands import Command

REQUEST = {name: {"id": name} for name in ("model", "benchmark", "harness", "environment")}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def counts(run: Path) -> dict[str, int]:
    return next(verify_runs([RunDir(run, run.name)], Options())).counts


@pytest.mark.parametrize("name", ["r_ok", "r_kill_mid"])
def test_a_stream_that_is_as_it_was_gives_nothing(name: str, run_dir: Callable[[str], Path]) -> None:
    """Finished or not, under catalogs of the folder above and of the run itself."""
    run = run_dir(name)
    before = counts(run)
    index(run.parent)
    index(run)
    assert run in known_prefixes([run]) and counts(run) == before


def test_a_stream_that_grew_gives_nothing(run_dir: Callable[[str], Path]) -> None:
    """What the catalog saw is still its beginning."""
    run = run_dir("r_kill_mid")
    index(run.parent.parent)
    close_run(run, "failed")
    assert "prefix_changed" not in counts(run)


def test_a_stream_sealed_anew_after_a_change_is_found(run_dir: Callable[[str], Path], command: Command) -> None:
    """Its chain is whole again, and no rule but this one can tell; the command's exit code is 1."""
    run = run_dir("r_ok")
    breaking.seal_stream(run)
    index(run.parent)
    events = breaking.events_of(run)
    for event in events:
        event.pop("log", None)
    events[5]["timestamp"] += 0.0001
    breaking.write_events(run, events)
    breaking.seal_stream(run)
    assert verify_run(RunDir(run, run.name)).counts == {}
    assert counts(run) == {"prefix_changed": 1}
    assert command("verify", run.parent) == 1 and "error prefix_changed: the stream is not" in command.out
    assert command("verify", run.parent, "--ignore", "prefix_changed") == 0
    index(run.parent)
    assert counts(run) == {}


def test_a_stream_that_lost_its_end_is_found(run_dir: Callable[[str], Path]) -> None:
    """Both sizes are told."""
    run = run_dir("r_kill_mid")
    size = (run / "progress.jsonl").stat().st_size
    index(run.parent)
    breaking.edit_lines(lambda lines: lines.pop())(run)
    report = next(verify_runs([RunDir(run, run.name)], Options()))
    (finding,) = [finding for finding in report.findings if finding.code == "prefix_changed"]
    assert finding.message.endswith(f"and the catalog saw {size}") and finding.file.endswith("progress.jsonl")


def test_a_repaired_stream_says_itself_that_it_changed(run_dir: Callable[[str], Path]) -> None:
    """The record of the repair names what was there before."""
    run = run_dir("r_kill_mid")
    index(run.parent)
    breaking.edit_lines(lambda lines: lines.insert(3, b"rubbish\n"))(run)
    repair_run(run, apply=True)
    found = counts(run)
    assert found["repaired"] == 1 and "prefix_changed" not in found


def test_a_broken_catalog_is_no_fault_of_the_run(run_dir: Callable[[str], Path], tmp_path: Path) -> None:
    """It is a help, not a record."""
    run = run_dir("r_ok")
    _, file = index(run.parent)
    file.write_bytes(b"no database" * 1000)
    assert known_prefixes([run]) == {} and counts(run) == {"unsealed": 1}


@pytest.mark.parametrize("with_catalog", [False, True])
def test_verify_never_loads_duckdb_into_its_own_process(run_dir: Callable[[str], Path], with_catalog: bool) -> None:
    """Without a catalog it is not loaded at all; with one, by a child that ends before others are forked."""
    run = run_dir("r_ok")
    if with_catalog:
        index(run.parent)
        breaking.alter("summary_started", payload={"note": 1})(run)
    program = (
        "import sys; from eventstore.operations.verify.verify import verify_paths; "
        f"print(sum(r.counts.get('prefix_changed', 0) for r in verify_paths([{str(run)!r}])), 'duckdb' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(int(with_catalog)), "False"]


def test_private_parameters_of_the_request_are_found(run_dir: Callable[[str], Path]) -> None:
    """Only below parameter objects, at any depth; the value is not repeated."""
    run = run_dir("r_ok")

    def change(info: breaking.Json) -> None:
        info["request"]["harness"]["params"] = {"tools": [{"_handle": "do not repeat"}]}
        info["request"]["metadata"] = {**info["request"].get("metadata", {}), "_mine": 1}

    breaking.edit_file("run_info.json", change)(run)
    report = verify_run(RunDir(run, run.name))
    (finding,) = [finding for finding in report.findings if finding.code == "private_parameter"]
    assert finding.message == "'request.harness.params.tools.0._handle' was not removed"
    assert finding.file.endswith("run_info.json") and finding.severity == "warning"


def test_a_process_that_breaks_down_on_a_catalog_is_not_waited_for(
    run_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB may not survive a damaged catalog: then nothing is known, and verify goes on."""
    run = run_dir("r_ok")
    index(run)
    monkeypatch.setattr(seen_prefixes, "_read", lambda file, keys: os.kill(os.getpid(), signal.SIGKILL))
    monkeypatch.delitem(sys.modules, "duckdb")
    assert seen_prefixes.known_prefixes([run]) == {}


def test_a_run_recorded_again_under_the_same_name_is_another_run(tmp_path: Path) -> None:
    """Its folder was deleted: what a catalog saw of the old one says nothing of it, whether it is longer or shorter."""
    for count in (3, 1, 5):
        run = tmp_path / "runs" / "r_same"
        shutil.rmtree(run, ignore_errors=True)
        with RunRecorder.create(run, request=REQUEST) as recorder:
            for number in range(count):
                recorder.append(TaskStarted(task_id=f"t{number}"))
        assert "prefix_changed" not in counts(run)
        index(run.parent)
        index(run)


def test_another_run_moved_to_a_name_is_another_run(run_dir: Callable[[str], Path]) -> None:
    run, other = run_dir("r_ok"), run_dir("r_retry")
    index(run.parent)
    shutil.rmtree(run)
    other.rename(run)
    assert "prefix_changed" not in counts(run)
