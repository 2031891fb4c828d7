"""Fixtures for everyone: recorded runs to read, copies of them to change, and AgentCompass's own answers."""

import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.tools.agentcompass_side import PYTHON as AGENTCOMPASS_PYTHON
from tests.tools.commands import Command
from tests.tools.recorded import BIG, ROOT, Oracle, key_of, unpack_big

SLOW = frozenset(
    """
    test_agentcompass test_benchmarks test_campaign test_catalog_crashes test_commands_agree test_corpus
    test_corruption test_crash_explorer test_cuts test_deep_nesting test_diagnose test_distribution
    test_every_option test_evidence test_follow test_history test_history_catalog test_history_export
    test_hostile_filesystems test_interrupts test_lifecycle test_long_and_sparse_streams test_mutations
    test_names_and_inodes test_oracle test_parallel test_plain_oracle test_planted_causes test_progress_model
    test_query test_questions test_recorder test_recorder_crash test_redact test_reports test_reuse test_runlog
    test_scans test_screens test_surroundings test_verify test_verify_catalog test_verify_rules
    """.split()
)
"""Test files that take more than a few seconds. `make check` leaves them out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker("slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="count every test that is skipped as failed")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs the real AgentCompass where there is none, before any fixture is made."""
    if item.get_closest_marker("agentcompass") and not AGENTCOMPASS_PYTHON:
        pytest.skip("COMPASS_ES_AGENTCOMPASS_PYTHON names no interpreter with AgentCompass 1.0.1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With --no-skips, let a skipped test fail: what was asked for was not done."""
    report = yield
    if report.skipped and item.config.getoption("--no-skips") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome, report.longrepr = "failed", f"--no-skips: {reason}"
    return report


def _state(root: Path) -> dict[Path, tuple[int, int]]:
    stats = ((path, path.lstat()) for path in root.rglob("*"))
    return {path: (found.st_size, found.st_mtime_ns) for path, found in stats}


@pytest.fixture(scope="session")
def runs_root() -> Iterator[Path]:
    """The folder of all recorded runs (but `r_big`), for reading only: a change in it fails the session."""
    before = _state(ROOT)
    yield ROOT
    after = _state(ROOT)
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    assert not changed, f"tests changed recorded runs: {[str(path) for path in changed[:5]]}"


@pytest.fixture(scope="session")
def big_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`r_big` (300 tasks, 9,254 events), unpacked once a session; for reading only."""
    return unpack_big(tmp_path_factory.mktemp("big"))


@pytest.fixture
def run_dir(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """`run_dir("r_ok")`: a fresh, writable copy of that recorded run, as `<tmp>/runs/<group>/r_ok`.

    A second copy of the same run goes below `<tmp>/runs-2`, and so on.
    """

    def copy(name: str) -> Path:
        key = key_of(name)
        source = request.getfixturevalue("big_run") if key.endswith(f"/{BIG}") else ROOT / key
        number, target = 1, tmp_path / "runs" / key
        while target.exists():
            number += 1
            target = tmp_path / f"runs-{number}" / key
        shutil.copytree(source, target, symlinks=True)
        for path in [target, *target.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o600)
        return target

    return copy


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    """`oracle["r_ok"]`: [(events folded, AgentCompass's snapshot after them)], fewest events first."""
    return Oracle()


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """`command("replay", path, "--json") == 0`: a command line, run in this process."""
    return Command(capfd)


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """A test that abandons a writer, as a crash does, leaves neither its threads nor its log handler to the next."""
    yield
    log, routing = sys.modules.get("eventstore.stream.log"), sys.modules.get("eventstore.recording.log_routing")
    for left in list(log._open_logs) if log else ():
        with suppress(Exception):  # it may be poisoned, which is what the test was about
            left.close()
    for destination in routing._router._open if routing else ():
        routing.close_route(destination)
