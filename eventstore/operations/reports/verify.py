"""What `verify` reports over all runs: findings up to a number, counts of all, and its `--json` documents."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from eventstore.format.records import Finding, Severity
from eventstore.operations.verify.baseline import fingerprint
from eventstore.operations.verify.catalogue import Rule, all_rules, rule_of
from eventstore.operations.verify.verify import Report


class Checked(Struct, frozen=True, kw_only=True):
    """How much was read."""

    files: int
    bytes: int
    events: int


class ListedFinding(Struct, frozen=True, kw_only=True):
    """One finding with its place. `line` counts from 1, `offset` and `seq` from 0; None where they have no meaning."""

    code: str
    severity: Severity
    run_key: str | None
    run_id: str | None
    file: str
    offset: int | None
    line: int | None
    seq: int | None
    task_id: str | None
    attempt: int | None
    message: str


class SeverityCounts(Struct, frozen=True, kw_only=True):
    """Findings by severity, also those that are not listed."""

    error: int
    warning: int
    info: int


class VerifyReport(Struct, frozen=True, kw_only=True):
    """What was found. `known` counts findings that a baseline has, `not_listed` those beyond the limits of the list."""

    schema: Literal["compass-es.verify.v1"] = "compass-es.verify.v1"
    runs: int
    findings: list[ListedFinding]
    checked: Checked
    severities: SeverityCounts
    known: int
    not_listed: int


class RulesReport(Struct, frozen=True, kw_only=True):
    """The catalogue of rules."""

    schema: Literal["compass-es.rules.v1"] = "compass-es.rules.v1"
    rules: list[Rule]


class Outcome:
    """What all runs gave: findings up to a number, counts of all, and the baseline line of each."""

    def __init__(self, max_findings: int | None, known: Counter[str]) -> None:
        self.findings: list[Finding] = []
        self.severities: Counter[str] = Counter()
        self.runs = self.files = self.bytes = self.events = self.known = self.hidden = 0
        self.keys: list[str] = []
        self._max_findings = max_findings
        self._left = known

    def take(self, reports: Iterable[Report]) -> None:
        """Collect the report of every run."""
        for report in reports:
            self.runs += 1
            self.files += report.files
            self.bytes += report.bytes
            self.events += report.events
            listed: Counter[str] = Counter()
            for finding in report.findings:
                listed[finding.code] += 1
                self._take(finding, report.path)
            for code, count in report.counts.items():
                self.severities[rule_of(code).severity] += count - listed[code]
                self.hidden += count - listed[code]

    def _take(self, finding: Finding, run_path: str) -> None:
        key = fingerprint(finding, run_path)
        self.keys.append(key)
        if self._left[key] > 0:
            self._left[key] -= 1
            self.known += 1
            return
        self.severities[finding.severity] += 1
        if self._max_findings is not None and len(self.findings) >= self._max_findings:
            self.hidden += 1
        else:
            self.findings.append(finding)


def verify_report(outcome: Outcome) -> VerifyReport:
    """Return the document of a verification."""
    counts = outcome.severities
    return VerifyReport(
        runs=outcome.runs,
        findings=[_listed(finding) for finding in outcome.findings],
        checked=Checked(files=outcome.files, bytes=outcome.bytes, events=outcome.events),
        severities=SeverityCounts(error=counts["error"], warning=counts["warning"], info=counts["info"]),
        known=outcome.known,
        not_listed=outcome.hidden,
    )


def _listed(finding: Finding) -> ListedFinding:
    return ListedFinding(**{name: getattr(finding, name) for name in ListedFinding.__struct_fields__})


def rules_report() -> RulesReport:
    """Return the catalogue of rules as a document."""
    return RulesReport(rules=all_rules())
