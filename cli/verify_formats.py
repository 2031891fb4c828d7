"""Findings for machines that know neither us nor our JSON: SARIF 2.1.0 and JUnit XML."""

import os
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from eventstore.operations.verify.catalogue import Finding, all_rules

from .output import clean, masked

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def sarif(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return a SARIF 2.1.0 log with the whole catalogue as rules."""
    rules = [
        {
            "id": rule.code,
            "shortDescription": {"text": rule.sentence},
            "help": {"text": rule.hint or rule.source},
            "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        }
        for rule in all_rules()
    ]
    driver = {"name": "compass-es", "version": metadata.version("compass-es"), "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(finding) for finding in findings]}],
    }


def _result(finding: Finding) -> dict[str, Any]:
    region: dict[str, int] = {}
    if finding.line is not None:
        region["startLine"] = finding.line
    if finding.offset is not None:
        region |= {"byteOffset": finding.offset, "byteLength": finding.length or 0}
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.file)}}
    if region:
        location["region"] = region
    about = {name: getattr(finding, name) for name in ("run_key", "run_id", "task_id", "attempt")}
    return {
        "ruleId": finding.code,
        "level": _LEVELS[finding.severity],
        "message": {"text": clean(finding.message)},
        "locations": [{"physicalLocation": location}],
        "properties": {name: value for name, value in about.items() if value is not None},
    }


def _uri(file: str) -> str:
    """A path as a URI: relative stays relative, absolute gets its scheme; bytes that are no UTF-8 stay themselves."""
    path = quote(os.fsencode(masked(Path(file).as_posix())), safe="/")
    return f"file://{path}" if path.startswith("/") else path


def junit(findings: Iterable[Finding]) -> str:
    """JUnit XML: one case for each finding, errors as failures, the rest as output of passed cases."""
    cases = [_case(finding) for finding in findings]
    failures = sum("<failure" in case for case in cases)
    head = f'<testsuite name="compass-es verify" tests="{len(cases)}" failures="{failures}" errors="0">'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}\n{"".join(cases)}</testsuite>\n'


def _case(finding: Finding) -> str:
    place = "".join(f":{number}" for number in (finding.line, finding.offset) if number is not None)
    name = f"{finding.code} {finding.task_id or ''}".strip()
    words = f"{clean(finding.file)}{place}: {finding.severity} {finding.code}: {clean(finding.message)}"
    open_case = f"  <testcase classname={_attribute(finding.run_key or '')} name={_attribute(name)}>"
    if finding.severity == "error":
        about = f"message={_attribute(finding.message)} type={_attribute(finding.code)}"
        body = f"<failure {about}>{_text(words)}</failure>"
    else:
        body = f"<system-out>{_text(words)}</system-out>"
    return f"{open_case}{body}</testcase>\n"


def _text(text: str) -> str:
    return escape(_NO_XML.sub("\ufffd", text))


def _attribute(text: str) -> str:
    return quoteattr(_NO_XML.sub("\ufffd", clean(text)))
