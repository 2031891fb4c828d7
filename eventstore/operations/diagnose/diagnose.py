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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs, to_builtins

from eventstore.errors import InputError
from eventstore.format.events import TERMINAL_STATUSES, Json
from eventstore.format.records import Block
from eventstore.operations.stall import stall_of
from eventstore.redaction.redactor import find_secrets, redact_values
from eventstore.run.directory import (
    PARAMS_NAME,
    PROGRESS_NAME,
    RUN_INFO_NAME,
    RUN_LOG_NAME,
    StoredFile,
    open_run,
    read_json_file,
)
from eventstore.run.liveness import Life, life_of, paths_held_open
from eventstore.stream.scan import STREAM_NAME, Scan, scan
from projections import Base
from projections.diagnose.causes import CAUSES
from projections.diagnose.diagnose import Diagnosis, Found, diagnose
from projections.diagnose.facts import Evidence, Facts, IssueFact, LogNote
from projections.snapshots import progress, run_info
from projections.snapshots.plans import State as NoPlans
from projections.timeline import milestones, timeline
from projections.timeline.in_flight import open_stays

from . import results as aftermath
from .log import LogFacts, search_log

Clock = Callable[[], float]
WENT_ON_SECONDS = 30.0
"""run.log has whole seconds and a clock of its own; this much younger than the stream is no accident."""
MAX_TEXT = 1000
MAX_TEXTS_SEARCHED = 2000
NOT_HELD = "no process of this host that may be seen has its files open"


def usual_seconds(
    paths: Sequence[str | os.PathLike[str]], benchmark: str | None, environment: str | None
) -> dict[str, float]:
    """As `phase_history.usual_seconds`; imported late, because the history costs start-up time."""
    from . import phase_history

    return phase_history.usual_seconds(paths, benchmark, environment)


class Seen(Struct, kw_only=True):
    """The folds of one run, and what its small files hold."""

    progress: progress.State
    run_info: run_info.State
    rows: timeline.State
    marks: milestones.State
    files: dict[str, StoredFile]
    stream: Scan | None = None
    problem: str | None = None
    analysis_only: bool = False
    line_breaks: list[tuple[int, int]] = []
    usual_seconds: dict[str, float] = {}


def diagnose_run(
    path: str | os.PathLike[str], clock: Clock = time.time, history: Sequence[str | os.PathLike[str]] = ()
) -> Json:
    """The diagnosis of one run as a JSON object; `history` are folders of runs that tell what is usual.

    Raises InputError where there is no run.
    """
    run_dir = open_run(path)
    seen = look(run_dir)
    if history:
        seen.usual_seconds = usual_seconds(
            history, seen.progress.ids.get("benchmark"), seen.progress.ids.get("environment")
        )
    info = run_info.record(seen.run_info) or {}
    log = search_log(run_dir / RUN_LOG_NAME)
    results = aftermath.read_results(run_dir)
    life = life_in(run_dir, seen, info, clock)
    facts = _facts(run_dir, seen, info, log, results.issues, life, clock)
    diagnosis = diagnose(facts)
    report = _report(run_dir, seen, info, life, facts, diagnosis)
    report |= aftermath.describe(run_dir, seen.rows, seen.marks, results, seen.files, facts.total_tasks)
    report["secrets"] = secrets_in(facts, log)
    report["log"] = {"lines": log.lines, "levels": log.levels, "last_time": log.last_time, "problem": log.problem}
    report["next_steps"] = next_steps(run_dir, diagnosis, report)
    return masked(report)


def look(run_dir: Path) -> Seen:
    """Scan and fold a run's stream, whatever state it is in."""
    files = {name: read_json_file(run_dir / name) for name in (PROGRESS_NAME, RUN_INFO_NAME, PARAMS_NAME)}
    base = Base(progress=files[PROGRESS_NAME].members, run_info=files[RUN_INFO_NAME].members)
    seen = Seen(
        progress=progress.initial(base),
        run_info=run_info.initial(base),
        rows=timeline.initial(base),
        marks=milestones.initial(base),
        files=files,
    )
    if not os.path.lexists(run_dir / STREAM_NAME):
        return seen
    try:
        seen.stream = scan(run_dir / STREAM_NAME)
        for block in seen.stream.blocks():
            progress.apply_block(seen.progress, block)
            run_info.apply_block(seen.run_info, block)
            seen.run_info.plans = NoPlans()  # the timeline has them
            timeline.apply_block(seen.rows, block)
            milestones.apply_block(seen.marks, block)
            _note_lines(seen.line_breaks, block)
    except InputError as error:
        seen.problem = error.message
    rows = seen.rows
    phases = {row.phase for row in rows.phases}
    seen.analysis_only = bool(rows.tasks) and not rows.attempts and phases == {"analyze"}
    return seen


def _note_lines(breaks: list[tuple[int, int]], block: Block) -> None:
    """Where the distance between a record's seq and its line changes: blank and damaged lines have no seq."""
    numbers = block.line_numbers or [block.first_line]
    for index, number in enumerate(numbers):
        seq = block.first_seq + index
        if number - seq != (breaks[-1][1] if breaks else 1):
            breaks.append((seq, number - seq))


def life_in(run_dir: Path, seen: Seen, info: Json, clock: Clock) -> Life:
    """Whether a writer lives; a live one that stands still, far beyond its own history, is stalled."""
    last = seen.marks.last_timestamp
    life = life_of(
        run_dir,
        finished=seen.marks.ended is not None or info.get("status") in TERMINAL_STATUSES,
        damaged=seen.stream is not None and seen.stream.damaged,
        last_timestamp=float(last) if last is not None else None,
        clock=clock,
    )
    if life.name == "live":
        return stall_of(seen.rows, seen.marks, clock(), seen.usual_seconds) or _with_holders(run_dir, life)
    return life


def _with_holders(run_dir: Path, life: Life) -> Life:
    """A life that only youth speaks for is told together with what this host's processes have open."""
    if not any("younger" in words for words in life.evidence):
        return life
    held = paths_held_open()
    if any(os.path.realpath(run_dir / name) in held for name in (STREAM_NAME, RUN_LOG_NAME)):
        return life
    return Life(life.name, [*life.evidence, NOT_HELD])


def _facts(
    run_dir: Path, seen: Seen, info: Json, log: LogFacts, issues: list[IssueFact], life: Life, clock: Clock
) -> Facts:
    ended = seen.marks.ended
    from_stream = ended is not None and not seen.analysis_only
    stored = info.get("status")
    status = (ended.status or "completed") if ended is not None and from_stream else stored
    error = (ended.payload.get("error") if ended is not None and from_stream else None) or info.get("error")
    scanned = seen.stream
    facts = Facts(
        marks=seen.marks,
        rows=seen.rows,
        total_tasks=seen.progress.counts.total_tasks,
        status=status if isinstance(status, str) else None,
        status_from=STREAM_NAME if from_stream else RUN_INFO_NAME,
        error=None if error is None else str(error),
        life=life.name,
        life_evidence=life.evidence,
        now=clock() if life.writing else None,
        usual_seconds=seen.usual_seconds,
        unheld=any(NOT_HELD in words for words in life.evidence),
        analysis_only=seen.analysis_only,
        issues=issues,
        notes=[LogNote(**{name: getattr(note, name) for name in LogNote.__struct_fields__}) for note in log.notes],
        findings=scanned.findings if scanned else [],
        rebooted=life.name == "dead" and any("started again" in words for words in life.evidence),
        problems=_problems(seen),
        line_breaks=seen.line_breaks,
    )
    if scanned is not None:
        end = scanned.tail.offset
        facts.damaged_to_the_end = any(
            (f.offset or 0) + (f.length or 0) >= end > 0 for f in scanned.findings if f.severity == "error"
        )
        facts.nul_tail = not facts.status and _ends_in_nul(scanned.path)
    if not from_stream and not seen.analysis_only and seen.marks.events:
        facts.log_went_on_seconds = _went_on(seen, info, log)
    return facts


def _problems(seen: Seen) -> list[Evidence]:
    found = [
        Evidence(file=file.path.name, text=f"{file.path.name} {file.problem}")
        for file in seen.files.values()
        if file.problem
    ]
    if seen.problem:
        found.append(Evidence(file=STREAM_NAME, text=seen.problem))
    return found


def _ends_in_nul(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
            return file.read(64).rstrip(b"\n").endswith(b"\0\0")
    except OSError:
        return False


def _went_on(seen: Seen, info: Json, log: LogFacts) -> float | None:
    """How many seconds the stored end, or run.log, is younger than the stream's last record; None if it is not."""
    last = seen.marks.last_timestamp
    if last is None:
        return None
    ends = [aftermath.unix_time(info.get("finished_at")), aftermath.log_time(log.last_time, info, last)]
    later = [end - last for end in ends if end is not None and end - last > WENT_ON_SECONDS]
    return max(later, default=None)


# -- the report


def _report(run_dir: Path, seen: Seen, info: Json, life: Life, facts: Facts, diagnosis: Diagnosis) -> Json:
    marks = seen.marks
    counters = {name: value for name, value in progress.snapshot(seen.progress).items() if name.endswith("_tasks")}
    del counters["active_tasks"]
    first, last = marks.first_timestamp, marks.last_timestamp
    return {
        "run_id": seen.progress.run_id or info.get("run_id"),
        "run_dir": str(run_dir),
        "outcome": diagnosis.outcome,
        "certainty": diagnosis.certainty,
        "causes": [_cause_members(cause) for cause in diagnosis.causes],
        "in_flight": [to_builtins(flight) for flight in diagnosis.in_flight],
        "status": facts.status,
        "error": facts.error,
        "life": structs.asdict(life),
        "started_at": first,
        "last_event_at": last,
        "duration_seconds": None if first is None or last is None else last - first,
        "longest_gap_seconds": marks.longest_gap_seconds,
        "counts": counters,
        "stream": {
            "events": marks.events,
            "verdicts": dict(seen.stream.verdicts) if seen.stream else {},
            "torn_bytes": seen.stream.tail.torn_bytes if seen.stream else 0,
            "clock_steps": marks.step_count,
            "analysis_only": seen.analysis_only,
        },
        "identity": {name: seen.progress.ids.get(name) for name in progress.IDENTITY},
    }


def _cause_members(cause: Found) -> Json:
    members: Json = to_builtins(cause)
    del members["weight"], members["order"]
    return members


def next_steps(run_dir: Path, diagnosis: Diagnosis, report: Json) -> list[str]:
    """What to do and which commands to type, the most useful first."""
    run = shlex.quote(str(run_dir))
    steps = [CAUSES[cause.code].advice for cause in diagnosis.causes[:1]]
    named = [task_id for cause in diagnosis.causes for task_id in cause.task_ids]
    named += [flight.task_id for flight in diagnosis.in_flight]
    steps += [f"compass-es task {run} {shlex.quote(task_id)}" for task_id in list(dict.fromkeys(named))[:2]]
    if report["stream"]["verdicts"].keys() - {"unsealed"} or report["stream"]["torn_bytes"]:
        steps += [f"compass-es verify {run}", f"compass-es repair {run}"]
    if diagnosis.outcome == "died":
        steps.append(f"compass-es close {run} --status failed")
    if diagnosis.outcome == "running" and diagnosis.certainty == "inferred":
        steps.append("if it ran on this host it is dead; without new events, ask again in a minute")
    if diagnosis.outcome in ("running", "stalled"):
        steps.append(f"compass-es tail {run} --follow")
    elif diagnosis.outcome != "completed" or diagnosis.causes:
        steps.append(f"compass-es reuse plan {run}")
    if report["secrets"]:
        steps.append("mask the credentials that are listed under secrets before you share this run")
    if report["resources"]:
        steps.append("release the environments that are still open (listed under resources)")
    return list(dict.fromkeys(steps))


def secrets_in(facts: Facts, log: LogFacts) -> list[Json]:
    """Where credentials stand in run.log, in errors of phases and in the run's error: the kind and the place."""
    found: list[Json] = [{"file": RUN_LOG_NAME, "line": line, "kind": kind} for line, kind in log.secrets]
    texts = [(row.seq, row.error) for row in [*facts.rows.phases, *open_stays(facts.rows)] if row.error]
    if facts.error and facts.marks.ended is not None:
        texts.append((facts.marks.ended.seq, facts.error))
    for seq, text in texts[:MAX_TEXTS_SEARCHED]:
        found += [{"file": STREAM_NAME, "seq": seq, "kind": match.kind} for match in find_secrets(text)[:3]]
    return found


def masked(value: Json) -> Json:
    """A report with credentials masked and long texts cut."""
    report: Json = redact_values(_cut(value))
    return report


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"
    if isinstance(value, dict):
        return {name: _cut(member) for name, member in value.items()}
    return [_cut(member) for member in value] if isinstance(value, list | tuple) else value
