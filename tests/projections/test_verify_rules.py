"""Each rule of the catalogue, broken alone: the run gives that code and at most the codes that its row implies."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventstore.format.records import VERDICTS
from eventstore.operations.verify.verify import Options, Report, verify_runs
from eventstore.run.directory import RunDir
from projections.verify.rules import RULES
from tests.tools import breaking
from tests.tools.breaks import BREAKS

DOCUMENT = Path(__file__).parents[2] / "docs" / "rules.md"
SAYS_IT_ALREADY = {"analysis_stream", "task_left_running"}
"""Rules that a recorded run breaks as it is."""


@pytest.fixture(autouse=True)
def _let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    breaking.release_held()


def check(run: Path) -> Report:
    return next(verify_runs([RunDir(run, run.name)], Options()))


def test_every_rule_has_a_test() -> None:
    """No rule lacks a run that breaks it, and no test is of a rule that isn't there."""
    assert list(BREAKS.keys() ^ RULES.keys()) == []


@pytest.mark.parametrize("code", BREAKS)
def test_a_broken_rule_is_found_and_nothing_unrelated(code: str, run_dir: Callable[[str], Path]) -> None:
    """The code is there, with the catalogue's severity, a message and the file; what else is new is implied."""
    if code == "unreadable" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    name, breaker, prepare = BREAKS[code]
    run = run_dir(name)
    prepare(run)
    before = Counter(check(run).counts)
    breaker(run)
    report = check(run)
    found = [finding for finding in report.findings if finding.code == code]
    assert found, report.counts
    assert all(finding.severity == RULES[code].severity and finding.message and finding.file for finding in found)
    new = {other for other, count in report.counts.items() if count > before[other]}
    assert code in SAYS_IT_ALREADY or code in new
    assert new - {code} <= set(RULES[code].implies), new


def test_the_catalogue_is_sound() -> None:
    """Stable, well-formed codes; implied codes exist; every verdict of scan is there with its severity."""
    for code, rule in RULES.items():
        assert re.fullmatch("[a-z][a-z_]*", code) and rule.sentence.endswith(".") and rule.source and rule.example
        assert set(rule.implies) <= RULES.keys(), code
    assert {code: RULES[code].severity for code in VERDICTS} == VERDICTS


def test_the_document_lists_the_catalogue() -> None:
    """docs/rules.md and the table say the same: every rule, with its severity, sentence and source."""
    cells = r" \| (.*?)" * 5
    rows = re.findall(rf"^\| `([a-z_]+)`{cells} \|$", DOCUMENT.read_text("utf-8"), re.M)
    assert rows == [_row(code) for code in RULES]


def _row(code: str) -> tuple[str, ...]:
    rule = RULES[code]
    cells = (rule.severity, rule.sentence, rule.source, rule.example, ", ".join(rule.implies))
    return (code, *(cell.replace("|", "\\|") for cell in cells))
