"""Diagnose a run directory: read what there is once, judge the facts, and add what to do.

The causes are those of `projections.diagnose.diagnose`.

    report = diagnose_run("results/…/r_1")
    report["outcome"], report["causes"][0]["code"], report["next_steps"]

One of the composers of `eventstore` and `projections`. Nothing is written, nothing in a record is executed or trusted
as a path, and every text that leaves here has its credentials masked.
"""

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins

from eventstore.format.events import Json
from eventstore.format.records import VERDICTS, Finding
from eventstore.format.values import iso_utc, shorten, unix_time
from eventstore.operations.masking import bounded
from eventstore.operations.verify.verify import Checking, Options, Report
from eventstore.operations.view import Clock, View, look, lost_words
from eventstore.redaction.redactor import find_secrets, redact_text, redact_values
from eventstore.run.directory import RUN_LOG_NAME, RunDir
from eventstore.run.liveness import Liveness
from eventstore.run.run import Run
from eventstore.stream.lock import is_locked
from eventstore.stream.lock_file import read_witness
from eventstore.stream.scan import STREAM_NAME
from projections.diagnose.causes import CAUSES
from projections.diagnose.diagnose import Diagnosis, Found, diagnose
from projections.diagnose.facts import Evidence, Facts, IssueFact
from projections.timeline.in_flight import open_stays

from . import results as aftermath
from .log import LogFacts, search_log

WENT_ON_SECONDS = 30.0
"""run.log has whole seconds and a clock of its own; this much younger than the stream is no accident."""
CHECKED = Options(secrets="none", artifacts=False, ignore=frozenset({"prefix_changed"}))
"""What of `verify` is part of a diagnosis: every rule but those that read much more than a run's records."""
MAX_TEXT = 1000
MAX_TEXTS_SEARCHED = 2000


def usual_seconds(
    paths: Sequence[str | os.PathLike[str]], benchmark: str | None, environment: str | None
) -> dict[str, float]:
    """As `phase_history.usual_seconds`; imported late, because the history costs start-up time."""
    from . import phase_history

    return phase_history.usual_seconds(paths, benchmark, environment)


def diagnose_run(
    path: str | os.PathLike[str], clock: Clock = time.time, history: Sequence[str | os.PathLike[str]] = ()
) -> Json:
    """Return the diagnosis of one run. `history` are folders of runs that show how long phases usually take.

    Raises InputError where there is no run.
    """
    run = Run.open(path)
    run_dir = run.path
    checking = Checking(RunDir(run_dir, run.run_key), CHECKED)
    view = look(run, observe=lambda block: checking.apply_block(block, sealed=run.sealed))
    found = checking.guarded(lambda: checking.finish(run.stream, run.problem))
    if history:
        view.usual_seconds = usual_seconds(history, view.identity["benchmark"], view.identity["environment"])
    log = search_log(run_dir / RUN_LOG_NAME)
    results = aftermath.read_results(run_dir, run.files.run_info)
    liveness = view.liveness(clock)
    facts = _facts(view, log, results.issues, liveness, clock)
    # While somebody writes, files are of different moments: of a live run, and of one that ended a moment ago.
    written = liveness.writing or is_locked(run_dir) is True
    facts.contradictions = [] if written else contradictions(found, run_dir)
    diagnosis = diagnose(facts)
    report = _report(view, liveness, facts, diagnosis)
    report |= aftermath.describe(run_dir, view.rows, view.marks, results, run.files, facts.total_tasks)
    _doubt_score(report["score"], facts.contradictions)
    report["secrets"] = secrets_in(facts, log)
    report["log"] = {"lines": log.lines, "levels": log.levels, "last_time": log.last_time, "problem": log.problem}
    report["next_steps"] = next_steps(run_dir, diagnosis, report)
    return masked(report)


def _facts(view: View, log: LogFacts, issues: list[IssueFact], liveness: Liveness, clock: Clock) -> Facts:
    scanned = view.run.stream
    facts = Facts(
        marks=view.marks,
        rows=view.rows,
        total_tasks=view.counts["total_tasks"],
        status=view.final_status,
        status_from=view.status_from,
        error=view.error,
        life=liveness.state,
        life_evidence=liveness.evidence,
        now=clock() if liveness.writing else None,
        usual_seconds=view.usual_seconds,
        unheld=liveness.reason == "young",
        analysis_only=view.analysis_only,
        issues=issues,
        notes=log.notes,
        findings=scanned.findings if scanned else [],
        rebooted=liveness.reason == "rebooted",
        problems=_problems(view),
        line_breaks=view.line_breaks,
        lost=lost_words(view.run, view.events),
        lock_loss=_lock_loss(view.run.path),
    )
    if scanned is not None:
        end = scanned.tail.offset
        facts.damaged_to_the_end = any(
            (f.offset or 0) + (f.length or 0) >= end > 0 for f in scanned.findings if f.severity == "error"
        )
        facts.nul_tail = not facts.status and _ends_in_nul(scanned.path)
    if not view.ended_in_stream and not view.analysis_only and view.events:
        facts.log_went_on_seconds = _went_on(view, log)
    return facts


def _doubt_score(score: Json, found: list[Finding]) -> None:
    """A score that does not follow from the results is not usable."""
    wrong = [finding for finding in found if finding.file == "metrics.json"]
    if wrong:
        score["usable"] = False
        score["reasons"] = [f"metrics.json: {wrong[0].message}", *score["reasons"]]


def contradictions(report: Report, run_dir: Path) -> list[Finding]:
    """Return the errors that the rules of `verify` found, beside those that other causes speak of."""
    errors = (finding for finding in report.findings if finding.severity == "error")
    return [
        structs.replace(finding, file=os.path.relpath(finding.file, run_dir))
        for finding in errors
        if finding.code not in VERDICTS and finding.code not in ("events_lost", "stream_unreadable")
    ]


def _problems(view: View) -> list[Evidence]:
    found = [Evidence(file=file.path.name, text=f"{file.path.name} {file.problem}") for file in view.run.files.problems]
    if view.run.problem is not None:
        found.append(Evidence(file=STREAM_NAME, text=view.run.problem))
    return found


def _lock_loss(run_dir: Path) -> tuple[int, str] | None:
    note = read_witness(run_dir).note
    return None if note is None or not note.lost else (note.lost, redact_text(note.reason))


def _ends_in_nul(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
            return file.read(64).rstrip(b"\n").endswith(b"\0\0")
    except OSError:
        return False


def _went_on(view: View, log: LogFacts) -> float | None:
    """How many seconds the stored end, or run.log, is younger than the stream's last record; None if it is not."""
    last = view.marks.last_timestamp
    if last is None:
        return None
    ends = [unix_time(view.info.get("finished_at")), aftermath.log_time(log.last_time, view.info, last)]
    later = [end - last for end in ends if end is not None and end - last > WENT_ON_SECONDS]
    return max(later, default=None)


# -- the report


def _report(view: View, liveness: Liveness, facts: Facts, diagnosis: Diagnosis) -> Json:
    stream = view.run.stream
    return {
        "schema": "compass-es.diagnose.v1",
        "run_id": view.run_id,
        "run_dir": str(view.run.path),
        "outcome": diagnosis.outcome,
        "certainty": diagnosis.certainty,
        "causes": [_cause_members(cause) for cause in diagnosis.causes],
        "in_flight": [to_builtins(flight) for flight in diagnosis.in_flight],
        "status": view.status,
        "ended": view.ended,
        "error": facts.error,
        "life": to_builtins(liveness.life),
        "started_at": iso_utc(view.started_at),
        "last_event_at": iso_utc(view.last_event_at),
        "duration_seconds": view.duration_seconds,
        "clock_stepped": view.clock_stepped,
        "closed": to_builtins(view.closed),
        "longest_gap_seconds": view.marks.longest_gap_seconds,
        "counts": view.counts,
        "stream": {
            "events": view.events,
            "verdicts": view.verdicts,
            "torn_bytes": stream.tail.torn_bytes if stream else 0,
            "clock_steps": view.marks.step_count,
            "analysis_only": view.analysis_only,
        },
        "identity": view.identity,
    }


def _cause_members(cause: Found) -> Json:
    members: Json = to_builtins(cause)
    del members["weight"], members["order"]
    return members


def next_steps(run_dir: Path, diagnosis: Diagnosis, report: Json) -> list[str]:
    """Return what to do and which commands to type, the most useful first."""
    run = shlex.quote(str(run_dir))
    steps = [CAUSES[cause.code].advice for cause in diagnosis.causes[:1]]
    named = [task_id for cause in diagnosis.causes for task_id in cause.task_ids]
    named += [flight.task_id for flight in diagnosis.in_flight]
    steps += [f"compass-es task {run} {shlex.quote(task_id)}" for task_id in list(dict.fromkeys(named))[:2]]
    if report["stream"]["verdicts"].keys() - {"unsealed"} or report["stream"]["torn_bytes"]:
        steps += [f"compass-es verify {run}", f"compass-es repair {run}"]
    elif any(cause.code in ("records_contradict", "records_lost") for cause in diagnosis.causes):
        steps.append(f"compass-es verify {run}")
    if diagnosis.outcome in ("died", "left") and report["stream"]["events"]:
        steps.append(f"compass-es close {run} --status failed")
    if diagnosis.outcome == "running" and diagnosis.certainty == "inferred":
        steps.append("if it ran on this host it is dead; without new events, ask again in a minute")
    if diagnosis.outcome in ("running", "stalled"):
        steps.append(f"compass-es tail {run} --follow")
    elif diagnosis.outcome != "completed" or diagnosis.causes:
        kept = report["reuse"].get("keeps_failed")
        if kept:
            steps.append(f"reuse as the run asked for it keeps {kept} failed tasks; a retry budget runs them again")
        steps.append(f"compass-es reuse plan {run}" + " --max-retries 1 --retry-pattern ." * bool(kept))
    if report["secrets"]:
        count = len(report["secrets"])
        steps.append(
            f"{count} credential{'s' * (count != 1)} in this folder: compass-es verify --only secret {run} names them, "
            f"compass-es scrub {run} OUT makes a copy to share without"
        )
    if report["resources"]:
        steps.append("release the environments that are still open (listed under resources)")
    return list(dict.fromkeys(steps))


def secrets_in(facts: Facts, log: LogFacts) -> list[Json]:
    """Return where credentials stand in run.log, in errors of phases and in the run's error: the kind and the place."""
    found: list[Json] = [{"file": RUN_LOG_NAME, "line": line, "kind": kind} for line, kind in log.secrets]
    texts = [(row.seq, row.error) for row in [*facts.rows.phases, *open_stays(facts.rows)] if row.error]
    if facts.error and facts.marks.ended is not None:
        texts.append((facts.marks.ended.seq, facts.error))
    for seq, text in texts[:MAX_TEXTS_SEARCHED]:
        found += [{"file": STREAM_NAME, "seq": seq, "kind": match.kind} for match in find_secrets(text)[:3]]
    return found


def masked(value: Json) -> Json:
    """Return a report with credentials masked, long texts cut, and nothing of what is nested too deeply to be shown."""
    report: Json = redact_values(_cut(bounded(value)))
    return report


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return shorten(value, MAX_TEXT)
    if isinstance(value, dict):
        return {name: _cut(member) for name, member in value.items()}
    return [_cut(member) for member in value] if isinstance(value, list | tuple) else value
