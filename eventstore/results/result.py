"""What one attempt produced: `result.json`, and the diagnostics of its retries, read without trust.

Only what is asked for is decoded: the status of a 42 MB result costs its bytes, not its trajectory. A result of the
older schema (task.v2, with an `error` text and no classified issues) is adapted on reading, and the file is left as it
is: what its structure proves gets an issue, any other failure is "unknown" (`classified` is False).
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from eventstore.errors import InputError, MalformedLineError
from eventstore.format.codec import dump_compact, parse_object
from eventstore.format.events import Json
from eventstore.redaction.redactor import redact
from eventstore.run.json_files import Members, read_bytes, read_members

SEVERITIES = ("fatal", "error", "warning")
ISSUE_PHASES = ("setup", "run", "collect", "evaluate", "cleanup")
ATTEMPT_STATUSES = (
    "completed",
    "skipped",
    "run_error",
    "eval_error",
    "run_error_or_eval_error",
    "cancelled",
    "interrupted",
)
NAMESPACES = ("benchmark", "harness")
"""The members of `meta`."""

RESULT_MEMBERS = (
    "status",
    "metrics",
    "final_answer",
    "trajectory",
    "issues",
    "artifacts",
    "analysis_result",
    "meta",
    "retry_count",
)

_READ = ("status", "metrics", "issues", "retry_count")
_READ_OLDER = (*_READ, "error", "artifacts", "extra", "meta")
_RETRY_NAME = re.compile(r".*?(?:\.attempt([0-9]{1,9}))?(?:\.retry([0-9]{1,9}))?\.([^.]+)\.json", re.DOTALL)
_CALM_STATUSES = frozenset({"completed", "skipped", "cancelled", "interrupted"})
_SCORED = frozenset({"score", "grading", "race", "fact"})


class Issue(Struct, frozen=True):
    """An unresolved execution fact: severity fatal, error or warning; phase setup, run, collect, evaluate or cleanup.

    Other words are kept as they stand; what is no text is "".
    """

    severity: str
    phase: str
    code: str
    message: str


class Result(Struct, frozen=True, kw_only=True):
    """What `result.json` says. `problem` tells why it can't be read, `faults` what in it breaks the schema.

    `exists` is False without a file; `is_result` is False for a file that holds only a retry count. `classified` is
    False where an older result tells a failure without saying how bad it was; such an attempt can't be reused.
    `members` holds the further members that the caller asked for.
    """

    exists: bool = True
    problem: str | None = None
    faults: list[str] = []
    status: str | None = None
    metrics: Json = {}
    issues: list[Issue] = []
    retry_count: int = 0
    classified: bool = True
    members: Json = {}
    size: int = 0

    @property
    def is_result(self) -> bool:
        """True where an attempt's outcome can be read from it."""
        return self.problem is None and self.status is not None

    @property
    def is_empty(self) -> bool:
        """True where it holds a retry count only: the attempt never came to a result."""
        return self.exists and self.problem is None and self.status is None and not self.faults

    @property
    def severity(self) -> str:
        """The highest severity of its issues, or "" for none."""
        return highest_severity(self.issues)


class Retry(Struct, frozen=True, kw_only=True):
    """Diagnostics of a result that was discarded and run again (schema `agentcompass.retry.v1`).

    `attempt`, `retry` and `stage` come from the file's name where the content does not tell.
    """

    path: Path
    problem: str | None = None
    task_id: str | None = None
    attempt: int | None = None
    retry: int | None = None
    max_retries: int | None = None
    stage: str | None = None
    scope: str | None = None
    matched_pattern: str | None = None
    issues: list[Issue] = []


def highest_severity(issues: list[Issue]) -> str:
    """fatal, error, warning, or "" for none of them."""
    found = {issue.severity for issue in issues}
    return next((severity for severity in SEVERITIES if severity in found), "")


def read_result(path: Path, *members: str, older: bool = False) -> Result:
    """Return the result in `path`, with the further `members` asked for. `older`: its task is of schema task.v2."""
    wanted = _READ_OLDER if older else _READ
    found = read_members(path, tuple(dict.fromkeys((*wanted, *members))))
    if not found.exists or found.problem is not None:
        return Result(exists=found.exists, problem=found.problem, size=found.size)
    return _interpret(found, members, older)


def _interpret(found: Members, members: tuple[str, ...], older: bool) -> Result:
    values, faults = found.values, list[str]()
    issues = parse_issues(values.get("issues"), faults) if "issues" in values else []
    classified = "issues" in values or not older
    if older and "issues" not in values:
        adapted = adapt_older(values)
        issues, classified = adapted or [], adapted is not None
    status = values.get("status")
    if status is None and set(values) != {"retry_count"}:
        faults.append("status is missing")
    elif status is not None and status not in ATTEMPT_STATUSES:
        faults.append(f"status is {str(status)[:80]!r}, which no attempt has")
    elif status is not None and "issues" not in values and not older:
        faults.append("issues is missing")
    return Result(
        status=status if isinstance(status, str) else None,
        metrics=_metrics(values.get("metrics"), faults),
        issues=issues,
        retry_count=_retry_count(values.get("retry_count", 0), faults),
        classified=classified,
        members={name: values[name] for name in members if name in values},
        faults=faults,
        size=found.size,
    )


def shape_faults(path: Path, *, older: bool = False) -> list[str]:
    """What keeps AgentCompass's strict reader from a result that is readable otherwise: members too many or too few,
    something else where an object must stand. `older`: the error text of task.v2 is allowed, and issues may lack."""
    try:
        members = msgspec.json.decode(read_bytes(path), type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, FileNotFoundError, InputError):
        return []  # told elsewhere, or odd JSON that is read by the slow path
    expected = set(RESULT_MEMBERS) - ({"issues"} if older else set())
    allowed = set(RESULT_MEMBERS) | ({"error"} if older else set())
    faults = [f"it has {name[:80]!r}, which no result has" for name in members.keys() - allowed]
    faults += [f"it lacks {name}" for name in expected - members.keys()]
    objects = ("trajectory", "artifacts", "analysis_result", "meta")
    faults += [f"{name} is no object" for name in objects if name in members and not _may_be_object(members[name])]
    if "meta" in members and not older and set(_parsed_object(members["meta"])) != set(NAMESPACES):
        faults.append(f"meta has other members than {' and '.join(NAMESPACES)}")
    return sorted(faults)


def _may_be_object(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:4]).lstrip()[:1] == b"{" or bytes(raw) in (b"null", b'""', b"[]")


def _metrics(value: Any, faults: list[str]) -> Json:
    if isinstance(value, dict):
        odd = [name for name, metric in value.items() if not isinstance(metric, bool | int | float)]
        if odd:
            faults.append(f"metric {odd[0][:80]!r} is no number and no boolean")
        endless = [name for name, metric in value.items() if isinstance(metric, float) and not math.isfinite(metric)]
        if endless:
            faults.append(f"metric {endless[0][:80]!r} is not finite")
        return value
    if value is not None:
        faults.append("metrics is no object")
    return {}


def _retry_count(value: Any, faults: list[str]) -> int:
    if type(value) is int and value >= 0:
        return value
    faults.append("retry_count is no non-negative integer")
    return 0


def parse_issues(value: Any, faults: list[str] | None = None) -> list[Issue]:
    """Return issues as a file has them; what breaks the schema is told to `faults` and read as far as it goes."""
    faults = [] if faults is None else faults
    if not isinstance(value, list):
        faults.append("issues is no list")
        return []
    issues = []
    for number, item in enumerate(value, 1):
        if not isinstance(item, dict):
            faults.append(f"issue {number} is no object")
            continue
        issue = Issue(*(text if isinstance(text := item.get(name), str) else "" for name in Issue.__struct_fields__))
        if issue.severity not in SEVERITIES:
            faults.append(f"issue {number} has severity {str(item.get('severity'))[:80]!r}")
        if issue.phase not in ISSUE_PHASES:
            faults.append(f"issue {number} has phase {str(item.get('phase'))[:80]!r}")
        issues.append(issue)
    return issues


def adapt_older(values: Json) -> list[Issue] | None:
    """Return issues of a task.v2 result from its structure alone, or None where its failure can't be classified.

    The rules are those of AgentCompass 1.0.1: an artifact that failed to transfer and a judge that failed are fatal, a
    calm status without an error has no issue, and an error text proves nothing.
    """
    artifacts, meta = _object(values.get("artifacts")), _object(values.get("meta"))
    manifest = _object(artifacts.get("declared_artifacts"))
    scoring = _object((_object(values.get("extra")) or _object(meta.get("benchmark"))).get("scoring"))
    entries = manifest.get("entries")
    failed = isinstance(entries, list) and any(_object(entry).get("status") == "failed" for entry in entries)
    if manifest.get("complete") is False and failed:
        return [Issue("fatal", "collect", "artifact_transfer_failed", "Historical artifact transfer failure")]
    if scoring.get("error") and type(scoring.get("correct")) is bool and not _SCORED & scoring.keys():
        return [Issue("fatal", "evaluate", "judge_failed", "Historical judge failure")]
    return [] if not values.get("error") and values.get("status") in _CALM_STATUSES else None


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def read_retry(path: Path) -> Retry:
    """Return the diagnostics of one discarded result; a file that can't be read still has what its name tells."""
    named = _RETRY_NAME.fullmatch(path.name)
    attempt, retry = (int(text) if (text := named and named[group]) else None for group in (1, 2))
    stage = named[3] if named else None
    names = ("task_id", "attempt", "retry", "max_retries", "stage", "scope", "matched_pattern", "issues")
    found = read_members(path, names)
    if found.problem is not None or not found.exists:
        return Retry(path=path, problem=found.problem or "is gone", attempt=attempt, retry=retry, stage=stage)
    values = found.values
    return Retry(
        path=path,
        task_id=_text(values.get("task_id")),
        attempt=_number(values.get("attempt")) or attempt,
        retry=_number(values.get("retry")) or retry,
        max_retries=_number(values.get("max_retries")),
        stage=_text(values.get("stage")) or stage,
        scope=_text(values.get("scope")),
        matched_pattern=_text(values.get("matched_pattern")),
        issues=parse_issues(values.get("issues", [])),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if type(value) is int else None


# -- The persisted shape of a result, from the shape in which AgentCompass 1.0.1 keeps one while its task still runs

_EMPTY = Raw(b"{}")
_DROPPED_META = frozenset({*NAMESPACES, "resolved_execution_plan", "status", "error", "plan", "extra"})


def is_persisted_shape(members: Mapping[str, Raw]) -> bool:
    """Return whether a result has the members that a published one has, `meta` with its two namespaces included."""
    return members.keys() == set(RESULT_MEMBERS) and set(_parsed_object(members["meta"])) == set(NAMESPACES)


def persisted_shape(members: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the nine members of a published result, in their order; values that are not moved keep their bytes."""
    shaped = {name: members[name] for name in RESULT_MEMBERS if name in members}
    for name in ("trajectory", "artifacts", "analysis_result"):
        if bytes(members.get(name, b"null")) in (b"null", b'""', b"[]"):
            shaped[name] = _EMPTY
    shaped.setdefault("metrics", _EMPTY)
    shaped.setdefault("issues", Raw(b"[]"))
    shaped.setdefault("final_answer", Raw(b"null"))
    shaped.setdefault("retry_count", Raw(b"0"))
    shaped["meta"] = Raw(dump_compact(redact(_meta(members))))
    return {name: shaped[name] for name in RESULT_MEMBERS if name in shaped}


def _meta(members: Mapping[str, Raw]) -> Json:
    stored = _parsed_object(members.get("meta"))
    benchmark: Json = {}
    harness: Json = {}
    _merge(benchmark, stored.get("benchmark"))
    _merge(harness, stored.get("harness"))
    _merge(benchmark, stored.get("extra"))
    _merge(benchmark, {name: value for name, value in stored.items() if name not in _DROPPED_META})
    _merge(benchmark, _parsed_object(members.get("extra")))
    telemetry = _parsed_object(members.get("telemetry"))
    if telemetry:
        _merge(harness, {"telemetry": telemetry})
    return {"benchmark": _sparse(benchmark), "harness": _sparse(harness)}


def _parsed_object(raw: Raw | None) -> Json:
    try:
        return {} if raw is None else parse_object(bytes(raw))
    except MalformedLineError:
        return {}


def _merge(target: Json, value: Any) -> None:
    for name, item in value.items() if isinstance(value, dict) else ():
        mine = target.get(name)
        if isinstance(mine, dict) and isinstance(item, dict):
            _merge(mine, item)
        else:
            target[name] = item


def _sparse(value: Json) -> Json:
    """Without empty members, at any depth of objects."""
    kept: Json = {}
    for name, item in value.items():
        found = _sparse(item) if isinstance(item, dict) else item
        if found not in (None, "", {}, []):
            kept[name] = found
    return kept
