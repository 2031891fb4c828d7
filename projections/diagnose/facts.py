"""The start of a diagnosis: the facts of one run, and the places where they stand. Pure values.

`eventstore.operations.diagnose.diagnose` gathers them, `projections.diagnose.diagnose` judges them.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from eventstore.format.records import Finding
from projections.timeline import milestones, timeline

STREAM = "progress.jsonl"
LOG = "run.log"
LOCK = "progress.lock"


RecordKind: TypeAlias = Literal["end", "event", "issue", "phase", "finding", "lock"]
"""Kinds of record that say a cause; `projections.diagnose.certainty` has the table."""


class Evidence(Struct, frozen=True, kw_only=True):
    """A place in the records: a file below the run directory, its line (from 1), the record's seq, and what it says.

    `record` is the kind of a record that says the cause itself; None where the place only points to it.
    """

    file: str
    text: str
    line: int | None = None
    seq: int | None = None
    task_id: str | None = None
    attempt: int | None = None
    record: RecordKind | None = None


class IssueFact(Struct, frozen=True, kw_only=True):
    """An issue as a result holds it. `discarded`: of an execution that was retried. `file`: below the run directory."""

    severity: str
    phase: str
    code: str
    message: str
    task_id: str | None
    attempt: int | None
    file: str
    discarded: bool = False


class LogNote(Struct, frozen=True, kw_only=True):
    """A warning, an error or a telling line of run.log. `text` is the message, `exception` a traceback's last line."""

    line: int
    level: str
    text: str
    exception: str = ""
    task_id: str | None = None
    at_end: bool = False


class Facts(Struct, kw_only=True):
    """What is known of a run. `status` is terminal or None; `status_from` names the file that says so.

    `now` is Unix time for a run that lives, None for any other. `usual_seconds` tells how long phases
    take in other runs (95 of 100 stays). `unheld`: its youth alone says that it lives, and no
    process of this host has its files open. `line_breaks` tells lines from seqs: from each seq on,
    the line is that many more than the seq (one more before the first break). `log_went_on_seconds` tells how much
    younger run.log's last line (or the stored end) is than the stream's last record. `contradictions` are errors that
    the rules of `verify` found, beside those of the scan. `lost` says why a stream without events can't be all.
    `lock_loss` is how many events the lock file says could not be appended, and why.
    """

    marks: milestones.State
    rows: timeline.State
    total_tasks: int = 0
    status: str | None = None
    status_from: str = STREAM
    error: str | None = None
    life: str = "silent"
    life_evidence: list[str] = []
    now: float | None = None
    unheld: bool = False
    usual_seconds: dict[str, float] = {}
    analysis_only: bool = False
    issues: list[IssueFact] = []
    notes: list[LogNote] = []
    findings: list[Finding] = []
    damaged_to_the_end: bool = False
    nul_tail: bool = False
    rebooted: bool = False
    log_went_on_seconds: float | None = None
    line_breaks: list[tuple[int, int]] = []
    problems: list[Evidence] = []
    contradictions: list[Finding] = []
    lost: str | None = None
    lock_loss: tuple[int, str] | None = None
