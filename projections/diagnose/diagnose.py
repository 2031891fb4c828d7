"""Diagnose: facts of one run in, its outcome and ranked causes out.

`eventstore.operations.diagnose` gathers the facts.

Every trace of trouble becomes a signal with a weight: what decided the outcome (0) before fatal issues (10), errors
(20), trouble with the records (30) and notes (40). Signals of one code are one cause; the rest of them are its echoes.
Among equals the cause that more tasks share leads, then the one that was seen first. A cause is `certain` where a
record of its evidence says it (`.certainty` has the table), else `inferred`.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from msgspec import Struct, structs

from eventstore.format.events import TERMINAL_STATUSES
from eventstore.format.records import VERDICTS, Finding
from projections.timeline import timeline
from projections.timeline.in_flight import (
    OPENING,
    Flight,
    hung_at_deadline,
    in_flight,
    never_opened,
    open_stays,
    stuck_phases,
)

from . import causes
from .causes import CAUSES
from .certainty import Certainty, first_with_proof, says
from .facts import LOCK, LOG, STREAM, Evidence, Facts, IssueFact, LogNote, RecordKind

DECISIVE, OUTCOME, FATAL, WRITERS, ERROR, RECORDS, NOTE, LAST = 0, 5, 10, 12, 20, 30, 40, 50
MAX_EVIDENCE = 5
MAX_TASK_IDS = 10
BEFORE = "the run ended before its first event"
_POISON_SIBLINGS = 3
RESTARTED = "was started again since"
"""What evidence says of a machine that a writer's lock did not outlive."""


class Signal(Struct, frozen=True, kw_only=True):
    """One trace of trouble."""

    code: str
    weight: int
    evidence: Evidence
    order: float = 0.0
    detail: str = ""


class Found(Struct, kw_only=True):
    """One cause. `message` is a whole sentence, `tasks` how many tasks share it, `times` how often it was seen."""

    code: str
    message: str
    certainty: Certainty
    blame: str
    evidence: list[Evidence]
    tasks: int
    task_ids: list[str]
    times: int
    weight: int
    order: float


class Diagnosis(Struct, frozen=True, kw_only=True):
    """`outcome`: a terminal status, or died, left, stalled, running. `certainty` is that of the outcome."""

    outcome: str
    certainty: Certainty
    causes: list[Found]
    in_flight: list[Flight]


def diagnose(facts: Facts) -> Diagnosis:
    """Return outcome, causes in order, and what was in flight."""
    flights = [] if facts.analysis_only else in_flight(facts.rows, facts.now)
    stuck = stuck_phases(facts.rows, flights, facts.usual_seconds)
    if facts.status == "timed_out" and not stuck:
        stuck = never_opened(facts.rows, flights, facts.marks) or hung_at_deadline(facts.rows, flights)
    outcome, certainty = _outcome(facts)
    fate = outcome if facts.marks.closed is None else "died"  # that somebody closed it later explains nothing
    signals = [*_end_signals(facts, fate, flights, stuck), *_stream_signals(facts, fate), *_issue_signals(facts)]
    signals += _log_signals(facts, fate)
    signals += _phase_signals(facts)
    signals += _blind_signals(facts, signals)
    found = _poisoned(facts, _group(facts, signals))
    found = _settle(facts, fate, found)
    return Diagnosis(outcome=outcome, certainty=certainty, causes=found, in_flight=flights)


def _outcome(facts: Facts) -> tuple[str, Certainty]:
    if facts.status in TERMINAL_STATUSES:
        return str(facts.status), "certain"
    if facts.status is not None:
        return "unknown", "certain"
    if facts.life == "live":
        return "running", "inferred" if facts.unheld else "certain"
    if facts.life == "stalled":
        return "stalled", "inferred"
    if facts.life == "left":
        return "left", "certain"
    return "died", "certain" if facts.rebooted else "inferred"


# -- how it ended


def _end_signals(facts: Facts, outcome: str, flights: list[Flight], stuck: dict[str, list[Flight]]) -> Iterator[Signal]:
    if outcome in ("timed_out", "stalled", "running"):
        for phase, tasks in stuck.items():
            detail = f"{len(tasks)} of {len(flights)} attempts in flight hang in {phase}"
            for flight in tasks:
                yield Signal(
                    code=causes.STUCK.get(phase, "stalled"),
                    weight=DECISIVE,
                    detail=detail,
                    evidence=_stuck_evidence(facts, flight),
                    order=-(flight.phase_seconds or 0.0),
                )
    match outcome:
        case "failed":
            yield from _failed(facts)
        case "cancelled":
            yield from _cancelled(facts)
        case "timed_out":
            yield _ending("deadline_exceeded", facts, OUTCOME, facts.error or "", record="end")
        case "died":
            yield from _died(facts)
        case "left":
            place = _lock_evidence("; ".join(facts.life_evidence), line=4)
            yield Signal(code="left_unfinished", weight=OUTCOME, evidence=place, detail=place.text)
        case "stalled":
            yield _ending("stalled", facts, OUTCOME, "; ".join(facts.life_evidence))
        case "completed" if facts.total_tasks == 0 and facts.marks.loaded is not None and not facts.analysis_only:
            evidence = _record(facts, facts.marks.loaded.seq, "tasks_loaded: total_tasks is 0", record="event")
            yield Signal(code="no_tasks", weight=DECISIVE, evidence=evidence)


def _failed(facts: Facts) -> Iterator[Signal]:
    error = facts.error or ""
    if "final fatal issues" in error.lower():
        return  # it says where to look, not what happened: the issues do
    marks = facts.marks
    named = causes.of_text(error)
    if marks.events and marks.loaded is None and not facts.analysis_only and not marks.attempts:
        code = named if named in ("disk_full", "out_of_memory", "too_many_open_files") else "tasks_not_loaded"
        yield _ending(code, facts, DECISIVE, error, record="end" if code == named else None)
    elif named is not None:
        yield _ending(named, facts, DECISIVE, error, record="end")
    elif (crash := _crash_of(facts, error)) is not None:
        yield _ending("poisoned_task", facts, DECISIVE, f"{crash.task_id}: {crash.exception or error}")
        yield _note_signal(crash, "poisoned_task", DECISIVE)
    elif marks.summary is not None and error:
        yield _ending("summary_failed", facts, DECISIVE, error)


def _never_began(facts: Facts) -> bool:
    """Return whether there never was an event: none can be read, and no other file knows of one."""
    return not facts.marks.events and facts.lost is None


def _crash_of(facts: Facts, error: str) -> LogNote | None:
    """Return the one task whose exception ended the run, as run.log has it."""
    crashes = [note for note in facts.notes if note.task_id and note.exception and error and error in note.exception]
    return crashes[0] if crashes and len({note.task_id for note in crashes}) == 1 else None


def _cancelled(facts: Facts) -> Iterator[Signal]:
    error = (facts.error or "").strip()
    if error.lower() in ("", "cancelled", "orchestration cancelled", "canceled", "keyboardinterrupt"):
        said: RecordKind | None = "end" if error.lower() == "keyboardinterrupt" else None
        yield _ending("stopped_by_user", facts, DECISIVE, error, record=said)
    else:
        yield _ending(causes.of_text(error) or "cancelled_with_others", facts, DECISIVE, error)


def _died(facts: Facts) -> Iterator[Signal]:
    closed = facts.marks.closed
    if closed is not None:
        words = "; ".join(closed.evidence)
        if RESTARTED in words:
            yield _ending("machine_stopped", facts, DECISIVE, words, record="end")
        told = f"closed later as {facts.status}" + (f" ({facts.error})" if facts.error else "")
        if closed.state == "left":
            yield _ending("left_unfinished", facts, OUTCOME, f"{told}: {words}", record="end")
        else:
            yield _ending("process_died", facts, OUTCOME, f"{told}: {words}")
        return
    if facts.nul_tail:
        yield _ending("machine_stopped", facts, DECISIVE, "the stream ends in NUL bytes, as after a power loss")
    if facts.rebooted:
        place = _lock_evidence(facts.life_evidence[0], line=1)
        yield Signal(code="machine_stopped", weight=DECISIVE, evidence=place, detail=place.text)
    detail = "; ".join([*([BEFORE] if _never_began(facts) else []), *facts.life_evidence])
    yield _ending("process_died", facts, OUTCOME, detail)


def _ending(code: str, facts: Facts, weight: int, detail: str, record: RecordKind | None = None) -> Signal:
    """Return a signal at the run's end, or where it should be. `record`: the end itself says the cause."""
    evidence = structs.replace(_end_evidence(facts), record=record if facts.status is not None else None)
    return Signal(code=code, weight=weight, evidence=evidence, detail=detail)


def _end_evidence(facts: Facts) -> Evidence:
    place = facts.marks.ended
    if place is not None and facts.status_from == STREAM:
        return _record(facts, place.seq, f"run_finished: status {place.status}: {facts.error or 'no error text'}")
    if facts.status is not None:
        return Evidence(file=facts.status_from, text=f"status {facts.status}: {facts.error or 'no error text'}")
    if facts.marks.events:
        return _record(facts, facts.marks.events - 1, "the last record; no run_finished follows")
    return Evidence(file="run_info.json", text="there is no stream, and no status")


def _lock_evidence(text: str, line: int) -> Evidence:
    """Return what the lock file says: line 1 is its writer, line 4 the note that the writer left."""
    return Evidence(file=LOCK, line=line, text=text, record="lock")


def _stuck_evidence(facts: Facts, flight: Flight) -> Evidence:
    words = f"in {flight.phase} for {flight.phase_seconds or 0:.0f} s"
    if flight.seq is None:
        return Evidence(file=STREAM, text=words, task_id=flight.task_id, attempt=flight.attempt)
    return _record(facts, flight.seq, words, flight.task_id, flight.attempt)


# -- the stream itself


def _stream_signals(facts: Facts, outcome: str) -> Iterator[Signal]:
    marks, unended = facts.marks, outcome in ("died", "left")
    keys = {place.request_key for place in marks.starts}
    if marks.start_count > 1 and not facts.analysis_only and len(keys) > 1:
        second = marks.starts[1]
        yield Signal(
            code="two_writers",
            weight=WRITERS if not unended else OUTCOME - 1,
            detail=f"{marks.start_count} run_started of {len(keys)} requests in one stream",
            evidence=_record(facts, second.seq, "another run_started"),
        )
    for finding in facts.findings:
        if VERDICTS.get(finding.code) == "error":
            yield _damage_signal(finding, facts, unended)
    for place in marks.lost:
        count, reason = place.payload.get("count"), place.payload.get("reason")
        yield Signal(
            code="disk_full" if causes.of_text(str(reason)) == "disk_full" else "records_stopped",
            weight=RECORDS,
            detail=f"{count} events could not be written: {reason}",
            evidence=_record(facts, place.seq, f"records_lost: {count}: {reason}", record="event"),
        )
    if facts.lock_loss is not None:
        count, reason = facts.lock_loss
        told = _lock_evidence(f"{count} events could not be written: {reason}", line=4)
        for code in dict.fromkeys([causes.of_text(reason) or "records_stopped", "records_stopped"]):
            weight = DECISIVE if unended and code == "disk_full" else RECORDS
            if code in ("disk_full", "records_stopped"):
                yield Signal(code=code, weight=weight, evidence=told, detail=told.text)
    for step in marks.steps:
        yield Signal(
            code="clock_step",
            weight=NOTE,
            order=step.seq,
            detail=f"by {-step.seconds:.0f} s",
            evidence=_record(facts, step.seq, f"{-step.seconds:.3f} s before its predecessor", record="event"),
        )
    if (went_on := facts.log_went_on_seconds) is not None:
        yield Signal(
            code="records_stopped",
            weight=RECORDS,
            detail=f"signs of life for {went_on:.0f} s after the last record",
            evidence=_record(facts, marks.events - 1, "the last record"),
        )
    if facts.status in TERMINAL_STATUSES and marks.events and marks.ended is None and not facts.analysis_only:
        yield Signal(
            code="records_stopped",
            weight=RECORDS,
            detail=f"{facts.status_from} says that the run ended as {facts.status}, the stream does not",
            evidence=structs.replace(_end_evidence(facts), record="end"),
        )
    for problem in facts.problems:
        damaged = "stream_damaged" if problem.file == STREAM else "records_unreadable"
        yield Signal(
            code=damaged, weight=RECORDS, evidence=structs.replace(problem, record="finding"), detail=problem.text
        )
    if facts.lost is not None:
        evidence = Evidence(file=STREAM, text=facts.lost, record="finding")
        yield Signal(code="records_lost", weight=WRITERS, evidence=evidence, detail=facts.lost)
    for order, finding in enumerate(facts.contradictions):
        yield Signal(
            code="records_contradict",
            weight=NOTE - 1,
            order=order,
            detail=f"{finding.code}: {finding.message}",
            evidence=Evidence(
                file=finding.file,
                line=finding.line,
                seq=finding.seq,
                text=f"{finding.code}: {finding.message}",
                task_id=finding.task_id,
                attempt=finding.attempt,
                record="finding",
            ),
        )


def _damage_signal(finding: Finding, facts: Facts, unended: bool) -> Signal:
    second = finding.code in ("unsealed_line", "foreign_run")
    lost = finding.code == "lost_acknowledged"
    code = "two_writers" if second else "records_lost" if lost else "stream_damaged"
    weight = RECORDS
    if second:
        weight = OUTCOME - 1 if unended else WRITERS
    elif unended and facts.damaged_to_the_end:
        weight = OUTCOME - 1
    text = f"{finding.code}: {finding.message}"
    record: RecordKind | None = None if second else "finding"
    evidence = Evidence(file=STREAM, line=finding.line, seq=finding.seq, text=text, record=record)
    return Signal(
        code=code,
        weight=weight,
        evidence=evidence,
        order=finding.line or 0,
        detail=f"{finding.code}: {finding.message}",
    )


# -- issues, the log, phases


def _issue_signals(facts: Facts) -> Iterator[Signal]:
    """Yield final issues that are errors or worse; those of discarded executions where nothing final is known."""
    final = {issue.task_id for issue in facts.issues if not issue.discarded}
    for issue in facts.issues:
        if issue.severity == "warning" and issue.phase == "cleanup" and not issue.discarded:
            yield _cleanup_signal(facts, issue)
            continue
        if issue.severity not in ("fatal", "error") or (issue.discarded and issue.task_id in final):
            continue
        weight = FATAL if issue.severity == "fatal" and not issue.discarded else ERROR
        text = f"{issue.severity} in {issue.phase}: {issue.code}: {issue.message}"
        evidence = Evidence(file=issue.file, text=text, task_id=issue.task_id, attempt=issue.attempt, record="issue")
        yield Signal(
            code=_cause_of(facts, issue),
            weight=weight,
            evidence=evidence,
            order=_moment(facts, issue.task_id),
            detail=issue.message,
        )


def _cleanup_signal(facts: Facts, issue: IssueFact) -> Signal:
    """Return a warning that something could not be released: the results hold, and something may still be open."""
    text = f"{issue.severity} in {issue.phase}: {issue.code}: {issue.message}"
    return Signal(
        code="cleanup_failed",
        weight=NOTE,
        evidence=Evidence(file=issue.file, text=text, task_id=issue.task_id, attempt=issue.attempt, record="issue"),
        order=_moment(facts, issue.task_id),
        detail=issue.message,
    )


def _blame(facts: Facts, code: str, certainty: Certainty) -> str:
    """Return whom a cause blames; a release that failed is the harness's where run.log names only the harness.

    A cancelled run whose records don't say by whom is blamed on nobody: a grader that calls sys.exit looks the same.
    """
    if code == "stopped_by_user" and certainty == "inferred":
        return "unknown"
    if code == "cleanup_failed":
        texts = [note.text for note in facts.notes if "release failed" in note.text]
        if texts and all("Harness release failed" in text for text in texts):
            return "harness"
    return CAUSES[code].blame


def _cause_of(facts: Facts, issue: IssueFact) -> str:
    """Return what an issue names; a set-up that failed while the environment opened is the environment's."""
    code = causes.of_issue(issue.code, issue.phase, issue.message)
    attempt = facts.rows.attempts.get((issue.task_id or "", issue.attempt))
    if code == "setup_failed" and attempt is not None and attempt.last_phase in OPENING:
        return "sandbox_failed"
    return code


def _moment(facts: Facts, task_id: str | None) -> float:
    row = facts.rows.tasks.get(task_id or "")
    return float(row.last_seq) if row is not None else float("inf")


def _log_signals(facts: Facts, outcome: str) -> Iterator[Signal]:
    explained = {issue.task_id for issue in facts.issues}
    for note in facts.notes:
        text = f"{note.text}\n{note.exception}"
        code = causes.of_text(text)
        if "Progress sink failed" in note.text:
            yield _note_signal(note, code or "records_stopped", DECISIVE if outcome in ("died", "left") else ERROR - 1)
            if code is not None:
                yield _note_signal(note, "records_stopped", RECORDS)
        elif code is None or (note.level == "WARNING" and code not in _OF_THE_HOST):
            continue
        elif outcome == "died" and note.at_end and code in _OF_THE_HOST:
            yield _note_signal(note, code, DECISIVE)
        elif note.task_id is None or note.task_id not in explained:
            weight = FATAL if outcome == "failed" and facts.error and facts.error in text else ERROR
            yield _note_signal(note, code, weight)


_OF_THE_HOST = frozenset(
    {"disk_full", "out_of_memory", "too_many_open_files", "stopped_by_user", "terminated_by_signal"}
)


def _note_signal(note: LogNote, code: str, weight: int) -> Signal:
    words = note.exception or note.text
    evidence = Evidence(
        file=LOG,
        line=note.line,
        text=f"{note.level}: {note.text}" + (f": {note.exception}" if note.exception else ""),
        task_id=note.task_id,
    )
    return Signal(code=code, weight=weight, evidence=evidence, order=note.line, detail=words)


def _phase_signals(facts: Facts) -> Iterator[Signal]:
    """Yield errors that a `phase_changed` carried; the reason where results are gone or not yet written."""
    explained = {issue.task_id for issue in facts.issues if issue.severity in ("fatal", "error")}
    for row in [*facts.rows.phases, *open_stays(facts.rows)]:
        if row.error is None or row.task_id in explained:
            continue
        code = causes.of_stage(row.phase, row.error)
        if code is not None:
            evidence = _record(
                facts, row.seq, f"phase {row.phase}: {row.error}", row.task_id, row.attempt, record="phase"
            )
            yield Signal(code=code, weight=ERROR, evidence=evidence, order=row.seq, detail=row.error)


def _blind_signals(facts: Facts, signals: list[Signal]) -> Iterator[Signal]:
    """Yield tasks that ended with errors and of which no issue is known: what their retries suggest, or "unknown"."""
    known = {signal.evidence.task_id for signal in signals}
    hints = {row.task_id: row for row in facts.rows.retries}
    for task_id, (severity, seq) in facts.marks.severities.items():
        if severity not in ("fatal", "error") or task_id in known:
            continue
        row = hints.get(task_id)
        suggested = _suggested(row)
        text = f"task_finished with severity {severity}; its issues are not in this directory"
        if row is not None:
            text += f"; retried in {row.stage} because of {row.matched_pattern!r}"
        yield Signal(
            code=suggested or "unknown",
            weight=FATAL if severity == "fatal" else ERROR,
            evidence=_record(facts, seq, text, task_id),
            order=seq,
            detail=text,
        )


def _suggested(row: timeline.RetryRow | None) -> str | None:
    if row is None:
        return None
    if row.matched_pattern and row.matched_pattern != "fatal" and (found := causes.of_pattern(row.matched_pattern)):
        return found
    return causes.of_stage(row.stage, "") if row.stage and row.stage != "attempt" else None


# -- from signals to causes


def _group(facts: Facts, signals: Iterable[Signal]) -> list[Found]:
    groups: dict[str, list[Signal]] = {}
    for signal in signals:
        groups.setdefault(signal.code, []).append(signal)
    found = [_cause(facts, code, group) for code, group in groups.items()]
    return sorted(found, key=_rank)


def _rank(cause: Found) -> tuple[int, int, float]:
    return cause.weight, -cause.tasks, cause.order


def _cause(facts: Facts, code: str, group: list[Signal]) -> Found:
    group = sorted(group, key=lambda signal: (signal.weight, signal.order))
    leader = group[0]
    task_ids = list(dict.fromkeys(s.evidence.task_id for s in group if s.evidence.task_id is not None))
    places = list(dict.fromkeys(signal.evidence for signal in group))
    certainty: Certainty = "certain" if any(says(code, place) for place in places) else "inferred"
    return Found(
        code=code,
        message=_message(facts, code, leader, len(task_ids)),
        certainty=certainty,
        blame=_blame(facts, code, certainty),
        evidence=first_with_proof(code, places, MAX_EVIDENCE),
        tasks=len(task_ids),
        task_ids=task_ids[:MAX_TASK_IDS],
        times=len(group),
        weight=leader.weight,
        order=leader.order,
    )


def _message(facts: Facts, code: str, leader: Signal, tasks: int) -> str:
    total = max(facts.total_tasks, len(facts.rows.tasks), tasks)
    scope = f" ({tasks} of {total} tasks)" if tasks else ""
    return f"{CAUSES[code].sentence}{scope}" + (f": {leader.detail}" if leader.detail else "")


def _poisoned(facts: Facts, found: list[Found]) -> list[Found]:
    """Return a failure of no telling kind that struck one task, again and again, while its siblings finished well."""
    if not found or not (leader := found[0]).task_ids or leader.tasks != 1 or not CAUSES[leader.code].generic:
        return found
    task_id = leader.task_ids[0]
    fine = ("", "warning")
    well = [name for name, (severity, _) in facts.marks.severities.items() if name != task_id and severity in fine]
    executions = sum(row.task_id == task_id for row in facts.rows.retries) + leader.times
    if len(well) < _POISON_SIBLINGS or len(well) < len(facts.marks.severities) - 1 or executions < 2:
        return found
    words = leader.message.partition(": ")[2]
    leader.message = f"{CAUSES['poisoned_task'].sentence}: {task_id}, {executions} times ({leader.code}): {words}"
    leader.code, leader.blame, leader.certainty = "poisoned_task", CAUSES["poisoned_task"].blame, "inferred"
    return found


def _settle(facts: Facts, outcome: str, found: list[Found]) -> list[Found]:
    """Return the causes with one explanation of the end; a run that ended badly has one, if only "unknown"."""
    if any(cause.weight < OUTCOME for cause in found):
        found = [cause for cause in found if cause.weight < OUTCOME or cause.code not in ("process_died", "stalled")]
    bad = outcome in ("failed", "cancelled", "timed_out")
    if bad and not any(cause.weight <= WRITERS for cause in found):
        weaker = [cause for cause in found if cause.weight <= ERROR]
        if not weaker:
            words = f"the error says: {facts.error}" if facts.error else "the error has no text"
            words = f"{BEFORE}: {words}" if _never_began(facts) else words
            signal = _ending("unknown", facts, LAST, words)
            return [_cause(facts, "unknown", [signal]), *found]
    return found


def _record(
    facts: Facts,
    seq: int,
    text: str,
    task_id: str | None = None,
    attempt: int | None = None,
    record: RecordKind | None = None,
) -> Evidence:
    at = bisect_right(facts.line_breaks, (seq, 1 << 62)) - 1
    line = seq + (facts.line_breaks[at][1] if at >= 0 else 1)
    return Evidence(file=STREAM, line=line, seq=seq, text=text, task_id=task_id, attempt=attempt, record=record)
