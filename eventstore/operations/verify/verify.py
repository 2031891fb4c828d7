"""Verify run directories: read their files once, hand them to the pure rules, change nothing.

    for report in verify_paths(["results"], processes=2):
        report.findings, report.counts, report.files, report.bytes, report.events

One of the composers of `eventstore` and `projections`. Runs are independent: one that can't be read gives findings and
never stops the others, and many are read in parallel processes.
"""

import contextlib
import copy
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from eventstore.errors import InputError
from eventstore.format import codec
from eventstore.format.events import Json
from eventstore.format.records import Block, Finding, cut_block
from eventstore.format.values import as_number
from eventstore.operations.pool import map_in_order
from eventstore.run.directory import (
    PARAMS_NAME,
    PROGRESS_NAME,
    RUN_INFO_NAME,
    RunDir,
    StoredFile,
    find_all,
    read_json_file,
)
from eventstore.run.json_files import read_bytes
from eventstore.run.liveness import life_of
from eventstore.run.names import DETAILS_NAME, is_leftover
from eventstore.run.request_record import section
from eventstore.run.run import Run
from eventstore.stream.line_reader import find_last
from eventstore.stream.scan import STREAM_NAME, Scan, scan
from projections.fold import Base
from projections.snapshots import progress, replay
from projections.verify import lifecycle
from projections.verify.details import TaskFacts, check_details
from projections.verify.files import Document, Facts, check_files
from projections.verify.findings import MAX_FINDINGS_PER_CODE, Notes
from projections.verify.payloads import DuplicateKeys, Endings
from projections.verify.plans import TaskPlans
from projections.verify.rules import RULES
from projections.verify.score import SUMMARY, ScoreCheck
from projections.verify.texts import LOG_NAME, StreamSecrets

from .details import DetailsReader
from .run_info_file import PLANS_MEMBER, read_run_info
from .texts import RECORD_FILES, SecretsIn, check_everything, check_log, check_members

if TYPE_CHECKING:
    from eventstore.history.catalog.seen_prefixes import Prefix

METRICS_NAME = "metrics.json"
SMALL_FILES = (PROGRESS_NAME, RUN_INFO_NAME, PARAMS_NAME, METRICS_NAME)
NOT_TO_THE_END = "could not be checked to the end"
_CANDIDATES = 3
_KEYS_CHECKED_BYTES = 64 * 1024
"""Repeated keys of a bigger file would cost more than everything else about it."""


class Report(Struct, frozen=True, kw_only=True):
    """What was found in one run. `counts` has all findings by code, `findings` at most a thousand of each code."""

    run_key: str
    path: str
    run_id: str | None
    findings: list[Finding]
    counts: dict[str, int]
    files: int = 0
    bytes: int = 0
    events: int = 0


class Options(Struct, frozen=True, kw_only=True):
    """What to look at. `only` and `ignore` name codes; `since` is Unix time: runs unchanged since then are left out.

    Without `artifacts`, the contents of stored artifacts are not compared with their checksums.
    """

    only: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    since: float | None = None
    secrets: SecretsIn = "records"
    artifacts: bool = True
    max_findings_per_code: int = MAX_FINDINGS_PER_CODE

    def wants(self, code: str) -> bool:
        """Return whether findings of a code are asked for."""
        return code not in self.ignore and (not self.only or code in self.only)


def verify_paths(
    paths: Iterable[str | os.PathLike[str]],
    options: Options | None = None,
    *,
    processes: int = 1,
    on_problem: Callable[[str, str], None] | None = None,
) -> Iterator[Report]:
    """Verify all runs at or below `paths`, in their order. Raises InputError if a path can't be read or holds no run.

    With `processes` above 1 runs are shared out to forked processes: for a program without threads of its own.
    """
    options = options or Options()
    return verify_runs(runs_to_verify(paths, options, on_problem), options, processes=processes)


def runs_to_verify(
    paths: Iterable[str | os.PathLike[str]],
    options: Options,
    on_problem: Callable[[str, str], None] | None = None,
) -> list[RunDir]:
    """Return the runs at or below `paths` that the options ask for. Raises InputError as `verify_paths` does."""
    runs = find_all(paths, on_problem)
    return [run for run in runs if options.since is None or changed_since(run.path, options.since)]


def verify_runs(runs: list[RunDir], options: Options, *, processes: int = 1) -> Iterator[Report]:
    """Verify runs in order, in this process or in several."""
    work = partial(_verify_one, options=options)
    known: Mapping[Path, Prefix] = {}
    if options.wants("prefix_changed"):
        from eventstore.history.catalog.seen_prefixes import known_prefixes

        known = known_prefixes(run.path for run in runs)
    yield from map_in_order(work, [(run, known.get(run.path)) for run in runs], processes)


def _verify_one(pair: "tuple[RunDir, Prefix | None]", options: Options) -> Report:
    return verify_run(pair[0], options, pair[1])


def changed_since(run_dir: Path, moment: float) -> bool:
    """Return whether a file of a run (its own files, not the details) was changed at or after a moment."""
    for name in (STREAM_NAME, *SMALL_FILES):
        try:
            if (run_dir / name).stat().st_mtime >= moment:
                return True
        except OSError:
            continue
    return False


def verify_run(run: RunDir, options: Options | None = None, known: "Prefix | None" = None) -> Report:
    """Check one run directory by all rules, with what a catalog has seen of it. Never raises for what is in it."""
    options = options or Options()
    checked = Checking(run, options)
    checked.known = known
    return checked.guarded(checked.run)


def _taken(score: ScoreCheck, task: TaskFacts) -> TaskFacts:
    score.take(task)
    return task


class Checking:
    """One run while it is checked. Files are read before the stream: of a live run they are never ahead of it.

    `run` reads the stream itself; who has it read anyway calls `apply_block` for each batch, and `finish` after the
    last.
    """

    def __init__(self, run: RunDir, options: Options) -> None:
        notes = Notes(options.max_findings_per_code)
        self.directory, self.notes, self.options = run, notes, options
        self.secrets = options.secrets if options.wants("secret") else "none"
        self.path = run.path
        self.files: set[str] = set()
        self.bytes = self.detail_files = self.stream_bytes = self.stream_lines = 0
        self.plans: dict[str, TaskPlans] | None = None
        self.known: Prefix | None = None
        self.stored = {name: self._read(name) for name in SMALL_FILES}
        base = Base(progress=self._members(PROGRESS_NAME), run_info=self._members(RUN_INFO_NAME))
        self.base = base
        self.replayed = replay.initial(base)
        self.watched = lifecycle.initial(base, notes)
        self._keys, self._endings = DuplicateKeys(notes), Endings()
        self._secrets = StreamSecrets(notes) if self.secrets != "none" else None
        self._stored_moment = as_number((base.progress or {}).get("updated_at"))
        self._candidates: deque[tuple[int, progress.State]] = deque(maxlen=_CANDIDATES)

    def _read(self, name: str) -> Document:
        path = self.path / name
        if name == RUN_INFO_NAME:
            split = read_run_info(path)
            if split is not None:
                self.files.add(name)
                self.bytes += split.size
                self.plans = split.plans
                self._check_keys(name)
                return Document(split.members)
        stored: StoredFile = read_json_file(path)
        if stored.members is not None or stored.problem is not None:
            self.files.add(name)
            with contextlib.suppress(OSError):
                self.bytes += path.stat().st_size
            if stored.members is not None:
                self._check_keys(name)
        return Document(stored.members, stored.problem)

    def _check_keys(self, name: str) -> None:
        try:
            content = read_bytes(self.path / name, _KEYS_CHECKED_BYTES)
        except (InputError, FileNotFoundError):
            return
        for key in dict.fromkeys(codec.duplicate_keys(content)):
            self.notes.add("duplicate_key", f"{key[:80]} stands twice in one object", file=name)

    def _members(self, name: str) -> Json | None:
        return self.stored[name].members

    def guarded(self, work: Callable[[], None]) -> Report:
        """Do a part of the work, and return the report: of a thousand runs one must not stop the others."""
        try:
            work()
        except OSError as error:
            self.notes.add("unreadable", f"{error.strerror or error}", file=str(error.filename or self.path))
        except Exception as error:  # whatever is wrong with the run, or with us
            self.notes.add("unreadable", f"{NOT_TO_THE_END}: {type(error).__name__}: {error}"[:400], file=RUN_INFO_NAME)
        return self.report(self.options)

    def run(self) -> None:
        """Read the stream, then apply the rules that need everything."""
        path = self.path / STREAM_NAME
        if not os.path.lexists(path):
            self.finish(None, None)
            return
        try:
            stream = scan(path)
        except InputError as error:
            self.finish(None, error.message)
            return
        for block in stream.blocks():
            self.apply_block(block, sealed=stream.sealed)
        self.finish(stream, None)

    def finish(self, stream: Scan | None, problem: str | None) -> None:
        """Apply the rules that need everything; `problem` says why the stream could not be read."""
        path = self.path / STREAM_NAME
        found = stream is not None or problem is not None
        if stream is not None:
            self.files.add(STREAM_NAME)
            self.bytes += stream.bytes
            self._take_verdicts(stream)
            self.stream_bytes, self.stream_lines = stream.bytes, stream.lines.read
        if problem is not None:
            self.notes.add("stream_unreadable", problem.removeprefix(f"{path}: "), file=STREAM_NAME)
        if not found:
            self.notes.add("stream_missing", f"there is no {STREAM_NAME}", file=STREAM_NAME)
        self._compare_with_catalog()
        live = self._is_live()
        lifecycle.finish(self.watched)
        self._place_last_lines()
        check_files(self.notes, self._facts(found, live), self.replayed, self.watched)
        self._check_details(live)
        self._look_for_leftovers(live)
        self._check_texts()

    def _check_texts(self) -> None:
        size = check_log(self.notes, self.path, secrets=self.secrets != "none")
        if size:
            self.files.add(LOG_NAME)
            self.bytes += size
        if self.secrets == "all":
            check_everything(self.notes, self.path, RECORD_FILES)
        elif self.secrets == "records":
            check_members(self.notes, RUN_INFO_NAME, self._members(RUN_INFO_NAME), (PLANS_MEMBER,))
            check_members(self.notes, PARAMS_NAME, self._members(PARAMS_NAME))

    def _check_details(self, live: bool) -> None:
        info = self._members(RUN_INFO_NAME)
        reader = DetailsReader(
            self.path, self.notes, self.run_id, info, self.plans, live=live, artifacts=self.options.artifacts
        )
        plan = section(section(section(info, "request"), "execution"), "attempts")
        if live:  # tasks move while one looks
            for _ in reader.tasks():
                pass
        else:
            found = (self.path / DETAILS_NAME).is_dir()
            score = ScoreCheck(self._members(METRICS_NAME), info, self._members(PARAMS_NAME))
            tasks = (_taken(score, task) for task in reader.tasks())
            check_details(self.notes, tasks, self.watched, plan=plan or None, found=found)
            if found:
                score.finish(self.notes, self._summary())
        self.detail_files, self.bytes = reader.files, self.bytes + reader.bytes

    def _summary(self) -> Document | str | None:
        """Return the text of summary.md, its problem, or None where there is none."""
        path = self.path / SUMMARY
        try:
            content = read_bytes(path)
        except FileNotFoundError:
            return None
        except InputError as error:
            return Document(problem=error.message.removeprefix(f"{path}: "))
        self.files.add(SUMMARY)
        self.bytes += len(content)
        return content.decode("utf-8", "replace")

    def _look_for_leftovers(self, live: bool) -> None:
        for entry in sorted(os.listdir(self.path)):
            if is_leftover(entry) and not live:
                words = "a temporary file of a write that did not end"
                self.notes.add("leftover_file", words, file=entry)

    @property
    def run_id(self) -> str | None:
        """The stream's run id, else that of run_info.json."""
        stored: Any = (self._members(RUN_INFO_NAME) or {}).get("run_id")
        return self.replayed.run_info.run_id or (stored if isinstance(stored, str) else None)

    # -- the stream

    def apply_block(self, block: Block, *, sealed: bool) -> None:
        """Fold a batch of records, and judge what can be judged on the way."""
        lifecycle.apply_block(self.watched, block)
        self._fold(block)
        empty = self._endings.apply_block(block)
        filled = [index for index, nothing in enumerate(empty) if not nothing]
        if not sealed:  # a sealed line proves that it is as it was written
            self._keys.apply_block(block, self._endings, empty, filled)
        if self._secrets is not None:
            self._secrets.apply_block(block, filled)

    def _compare_with_catalog(self) -> None:
        """A repair says in the stream that it changed; a re-analysis is a stream of its own."""
        words = None if self.known is None else self.known.broken(self.path)
        analysis = self.watched.analyzes and not self.watched.evaluates
        if words is not None and not analysis and not self.notes.counts["repaired"]:
            self.notes.add("prefix_changed", words)

    def _take_verdicts(self, stream: Scan) -> None:
        for finding in stream.findings:
            whole = finding.code == "unsealed"  # speaks of the stream, not of a line
            self.notes.take(structs.replace(finding, file=STREAM_NAME, line=None if whole else finding.line))
        self.damaged = stream.damaged
        for code, count in stream.verdicts.items():
            self.notes.counts[code] = count  # scan keeps only so many of them, and counts all

    def _place_last_lines(self) -> None:
        """Tasks in flight are known by their last line's bytes; here they get its place."""
        wanted = [f for f in self.notes.findings if f.code == "task_in_flight" and f.offset is None]
        if not wanted or not self.stream_bytes:
            return
        active = self.watched.interrupted | self.watched.active
        lines = {last for f in wanted if (last := active[str(f.task_id)].last)}
        with contextlib.suppress(OSError), (self.path / STREAM_NAME).open("rb", buffering=0) as file:
            places = find_last(file.fileno(), self.stream_bytes, lines)
            for finding in wanted:
                last = active[str(finding.task_id)].last
                if last in places:
                    offset, line = places[last]
                    placed = structs.replace(finding, offset=offset, length=len(last), line=line)
                    self.notes.findings[self.notes.findings.index(finding)] = placed

    def _is_live(self) -> bool:
        if self.watched.ended is not None or not self.watched.events:
            return False
        life = life_of(self.path, last_timestamp=self.watched.last_timestamp)
        if life.writing:
            self.watched.live = life.evidence[0]
        return life.writing

    def _fold(self, block: Block) -> None:
        """Fold a batch, and keep the state at the last records that have the time of the stored snapshot.

        A stale snapshot is that of an earlier moment, and only its time says of which.
        """
        moment, done = self._stored_moment, 0
        if moment is not None:
            ends = [index + 1 for index, head in enumerate(block.heads) if head.timestamp == moment]
            for end in ends[-_CANDIDATES:]:
                replay.apply_block(self.replayed, cut_block(block, done, end))
                self._candidates.append((block.first_seq + end, copy.deepcopy(self.replayed.progress)))
                done = end
        if done < len(block.heads):
            replay.apply_block(self.replayed, cut_block(block, done, len(block.heads)))

    def _state_at(self, timestamp: float) -> tuple[int, Json] | None:
        """Return the fold up to the last records with a timestamp: is a stale snapshot that of an earlier moment?"""
        stored = self._members(PROGRESS_NAME)
        best: tuple[int, Json] | None = None
        for end, state in self._candidates if timestamp == self._stored_moment else ():
            folded = progress.snapshot(state)
            if best is None or replay.same_progress(stored, folded):
                best = (end, folded)
        return best

    # -- the rest

    def _facts(self, stream_found: bool, live: bool) -> Facts:
        return Facts(
            name=self.path.resolve().name,
            stream_found=stream_found,
            progress=self.stored[PROGRESS_NAME],
            run_info=self.stored[RUN_INFO_NAME],
            plans=self.plans,
            params=self.stored[PARAMS_NAME],
            metrics=self.stored[METRICS_NAME],
            source=self._source(),
            has_details=(self.path / DETAILS_NAME).is_dir(),
            has_results=Run(self.path).has_results,
            live=live,
            state_at=self._state_at,
        )

    def _source(self) -> Document:
        """run_info.json of the run that `reused_from` names: beside this one. The stored path is not followed."""
        named = (self._members(RUN_INFO_NAME) or {}).get("reused_from")
        run_id = named.get("run_id") if isinstance(named, dict) else None
        if not isinstance(run_id, str) or run_id != os.path.basename(run_id) or run_id in ("", ".", ".."):
            return Document()
        stored = read_json_file(self.path.resolve().parent / run_id / RUN_INFO_NAME)
        return Document(stored.members, stored.problem)

    def report(self, options: Options) -> Report:
        """Return findings with the run's names, in the order of the catalogue's groups, then of places."""
        run_id = self.run_id
        kept = [finding for finding in self.notes.findings if options.wants(finding.code)]
        return Report(
            run_key=self.directory.run_key,
            path=str(self.path),
            run_id=run_id,
            findings=sorted((self._named(finding, run_id) for finding in kept), key=_order),
            counts=dict(Counter({c: n for c, n in self.notes.counts.items() if options.wants(c)})),
            files=len(self.files) + self.detail_files,
            bytes=self.bytes,
            events=self.watched.events,
        )

    def _named(self, finding: Finding, run_id: str | None) -> Finding:
        path = str(self.path / (finding.file or STREAM_NAME))
        return structs.replace(finding, file=path, run_key=self.directory.run_key, run_id=run_id)


_GROUPS = {code: position for position, code in enumerate(RULES)}


def _order(finding: Finding) -> tuple[str, int, int]:
    return finding.file, -1 if finding.offset is None else finding.offset, _GROUPS[finding.code]
