"""`RunRecorder`: one evaluation recorded as events, with its directory, snapshots and log kept as specified.

    with RunRecorder.create(run_dir, request=request) as run:
        run.append(TasksLoaded(payload=TasksLoadedPayload(total_tasks=1)))
        ...
        run.finish("completed")

Every state change is one appended event; `progress.json` and `run_info.json` follow through the projections. See
docs/recording.md.
"""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from msgspec import structs

from eventstore.errors import CompassError, OutputError, UsageError
from eventstore.format import codec
from eventstore.format.events import (
    ADMINISTRATIVE_EVENTS,
    TERMINAL_STATUSES,
    Event,
    Json,
    MetricArtifactsWritten,
    RecordsLost,
    RunFinished,
    RunFinishedPayload,
    RunStarted,
    TerminalStatus,
    event_name,
)
from eventstore.redaction.events import Masker
from eventstore.redaction.redactor import redact_keys, redact_text, secret_environment_values
from eventstore.run.directory import PARAMS_NAME, RUN_INFO_NAME, open_run, read_json_file
from eventstore.stream.atomic_file import replace_file
from eventstore.stream.encode import Origin
from eventstore.stream.filesystem import REAL, FileSystem
from eventstore.stream.group_commit import Durability

from .live_snapshots import LiveSnapshots, Noticed
from .request import Request, as_request
from .session import (
    RecorderSettings,
    Session,
    analysis_started,
    found_session,
    new_session,
    reserve,
    run_started,
    secrets_of,
    set_evaluation_aside,
    started_payload,
    stored_start,
)

if TYPE_CHECKING:
    from eventstore.results.store import Recovered

logger = logging.getLogger(__name__)

_TURNING_POINTS = frozenset({RunFinished, RunStarted})
_AFTER_THE_END = frozenset({*ADMINISTRATIVE_EVENTS.values(), RunStarted})


class RunRecorder:
    """Records one run. Make one with `create`, `open` or `analyze`; safe to call from many threads and from asyncio."""

    def __init__(
        self,
        session: Session,
        *,
        on_progress: Callable[[Json], None] | None = None,
    ) -> None:
        settings = session.settings
        self.run_dir, self.log = session.run_dir, session.log
        self._request, self._clock, self._files = session.request, settings.clock, settings.files
        self._started = session.started
        self._masker, self._run_log = Masker(settings.secrets), session.run_log
        self._secrets, self._keeps_run_info = settings.secrets, session.keeps_run_info
        self._finished = session.finished
        self._ending = threading.Lock()
        self._params_written = False
        self._pid = os.getpid()
        self._bound: Any = None
        self.recovered: Recovered | None = None
        """What `open` finished or undid among task results that a crash left half done."""
        self.live = LiveSnapshots(
            session.run_dir,
            session.state,
            session.log.take_unread,
            files=settings.files,
            keeps_run_info=session.keeps_run_info,
            on_noticed=self._write_due_params,
            on_progress=on_progress,
        )
        self.log.take_unread()
        self.log.on_unread = self.live.wake
        self.live.start()
        atexit.register(self.close)  # a program that ends without closing: last snapshot, last fsync

    # -- beginnings

    @classmethod
    def create(
        cls,
        run_dir: str | os.PathLike[str],
        *,
        request: Request | Mapping[str, Any],
        durability: Durability = "group",
        run_id: str | None = None,
        origin: Origin | None = None,
        reused_from: Json | None = None,
        file_log_level: int | str | None = "DEBUG",
        files: FileSystem = REAL,
        clock: Callable[[], float] = time.time,
    ) -> "RunRecorder":
        """Reserve a run directory and start recording: `run.log`, then `run_info.json`, then the first event.

        `run_id` defaults to the request's `output.run_id`, else to the directory's name. `origin` places the run in an
        orchestration. `file_log_level` None leaves `run.log` to others. Raises UsageError, and makes no directory,
        where the request fails a check; RefusedError where the directory holds a run already; OutputError where it
        can't be written.
        """
        run_dir = Path(run_dir)
        request = as_request(request)
        name = run_id or request.output.run_id or run_dir.resolve().name
        request = request.with_run_id(name)
        secrets = secrets_of(request)
        started = run_started(request, name, reused_from, secrets, clock())
        lock = reserve(run_dir, files)
        session = new_session(
            run_dir,
            lock,
            request,
            started,
            RecorderSettings(
                durability=durability,
                origin=origin,
                files=files,
                clock=clock,
                secrets=secrets,
                file_log_level=file_log_level,
            ),
        )
        return cls(session)._begin(started)

    @classmethod
    def open(
        cls,
        run_dir: str | os.PathLike[str],
        *,
        durability: Durability = "group",
        origin: Origin | None = None,
        file_log_level: int | str | None = "DEBUG",
        files: FileSystem = REAL,
        clock: Callable[[], float] = time.time,
    ) -> "RunRecorder":
        """Start a new session in an existing run, with the state that its stream says.

        A torn tail is set aside; lines that AgentCompass wrote are adopted. Publications of task results that a crash
        broke off are finished or undone, and a `partial_saved` that it left out is appended. On a finished run only
        administrative events are accepted until a `RunStarted` opens it again. Raises LockedError, naming the writer,
        while another one is at work, and DamagedError where the stream needs `compass-es repair` first.
        """
        run_dir = open_run(run_dir)
        session = found_session(
            run_dir,
            RecorderSettings(
                durability=durability,
                origin=origin,
                files=files,
                clock=clock,
                secrets=secret_environment_values(os.environ),
                file_log_level=file_log_level,
            ),
            owns_run_info=True,
        )
        recorder = cls(session)
        if not session.log.opened.records:
            # It died before its first event: what run_info.json says of the beginning goes into the stream now.
            return recorder._begin(stored_start(recorder.run_info or {}))
        if session.told is not None:
            recorder._recover(() if session.finished else tuple(session.told.unsaved))
        if session.owned:
            recorder.live.refresh(everything=True)
        return recorder

    @classmethod
    def attach(
        cls,
        run_dir: str | os.PathLike[str],
        *,
        durability: Durability = "group",
        origin: Origin | None = None,
        on_progress: Callable[[Json], None] | None = None,
        files: FileSystem = REAL,
        clock: Callable[[], float] = time.time,
    ) -> "RunRecorder":
        """Record the stream of a run whose other files somebody else keeps: `run_info.json`, `params.json`, `run.log`.

        As `open`, but the first event is the caller's to append (a `RunStarted` is completed with what `run_info.json`
        says). `on_progress` is called with each snapshot that is written.
        """
        session = found_session(
            open_run(run_dir),
            RecorderSettings(
                durability=durability,
                origin=origin,
                files=files,
                clock=clock,
                secrets=secret_environment_values(os.environ),
            ),
            owns_run_info=False,
        )
        session.keeps_run_info = False
        recorder = cls(session, on_progress=on_progress)
        if recorder._started is None:
            recorder._started = stored_start(recorder.run_info or {})
        return recorder

    @classmethod
    def analyze(
        cls,
        run_dir: str | os.PathLike[str],
        *,
        durability: Durability = "group",
        files: FileSystem = REAL,
        clock: Callable[[], float] = time.time,
    ) -> "RunRecorder":
        """Start the stream of a re-analysis: the evaluation's is set aside as `progress.evaluation-<n>.jsonl`.

        `run_info.json`, `params.json` and `run.log` keep describing the evaluation, whose `run_id` is used.
        """
        run_dir = open_run(run_dir)
        info = read_json_file(run_dir / RUN_INFO_NAME).members or {}
        lock, name = set_evaluation_aside(run_dir, files)
        secrets = secret_environment_values(os.environ)
        started = analysis_started(info, str(name or info.get("run_id") or run_dir.resolve().name))
        session = new_session(
            run_dir,
            lock,
            None,
            started,
            RecorderSettings(durability=durability, files=files, clock=clock, secrets=secrets),
        )
        return cls(session)._begin(started)

    def _begin(self, started: RunStarted) -> "RunRecorder":
        try:
            self._started = started
            self.log.append(started)
            self.live.refresh()
        except BaseException:
            self.close()
            raise
        return self

    def _recover(self, unsaved: tuple[str, ...]) -> None:
        """Results that can't be set right are no reason not to record: `verify` and `repair` tell of them."""
        from eventstore.results.store import TaskStore

        try:
            store = TaskStore(self.run_dir, append=self.append, files=self._files)
            self.recovered = store.recover(unsaved, thorough=False)
        except CompassError as error:
            logger.warning("%s: task results are left as the last writer left them: %s", self.run_dir, error)
        except BaseException:
            self.close()
            raise

    # -- appending

    @property
    def run_id(self) -> str:
        """The id under which events are recorded."""
        return self.log.run_id

    @property
    def finished(self) -> bool:
        """True once the run has its terminal event."""
        return self._finished

    @property
    def progress(self) -> Json:
        """The content of `progress.json` when everything appended so far is counted."""
        return self.live.progress

    @property
    def run_info(self) -> Json | None:
        """The content of `run_info.json` when everything appended so far is counted."""
        return self.live.run_info

    def append(self, event: Event) -> int:
        """Append one event, redacted, and return its `seq`; `run_id` and time are filled in.

        It is in the file on return, and as durable as asked for. Raises OutputError where it could not be written
        (nothing of it is left), LogPoisonedError when the disk can't be trusted any more, UsageError for an event that
        has no place here.
        """
        if self._finished or type(event) in _TURNING_POINTS:
            return self._append_turning_point(event)
        return self.log.append(self._masker.mask(event))

    async def append_async(self, event: Event) -> int:
        """Append one event as `append` does, without holding the event loop for an fsync."""
        if self._finished or type(event) in _TURNING_POINTS:
            import asyncio

            return await asyncio.to_thread(self._append_turning_point, event)
        return await self.log.append_async(self._masker.mask(event))

    def _append_turning_point(self, event: Event) -> int:
        with self._ending:
            if self._finished and type(event) not in _AFTER_THE_END:
                raise UsageError(f"{self.run_dir}: the run has finished, and {event_name(event)} comes after its end")
            if isinstance(event, RunFinished) and event.status not in TERMINAL_STATUSES:
                raise UsageError(f"a run ends as {', '.join(TERMINAL_STATUSES)}, not as {event.status!r}")
            if isinstance(event, RunStarted):
                event = self._completed_start(event)
            seq = self.log.append(self._masker.mask(event))
            if isinstance(event, RunFinished | RunStarted):
                self._finished = isinstance(event, RunFinished)
                self.live.refresh(everything=True)
                if self._finished and self.log.durability != "os":
                    self.log.sync()
            return seq

    def _completed_start(self, event: RunStarted) -> RunStarted:
        """Return a start given by the caller, with what it leaves open filled in as in ours."""
        known = codec.payload_members(self._started) if self._started is not None else {}
        members = known | {name: v for name, v in codec.payload_members(event).items() if v is not None}
        return structs.replace(event, payload=started_payload(members))

    def sync(self) -> None:
        """Return when everything appended so far is on stable storage."""
        self.log.sync()

    async def sync_async(self) -> None:
        """Make durable what `sync` makes durable, without holding the event loop."""
        await self.log.sync_async()

    # -- records of our own

    def record_metric_artifacts(
        self,
        report: Json,
        *,
        source: Literal["evaluation", "summary"] = "evaluation",
        benchmark_params_override: Json | None = None,
    ) -> int:
        """Note that metric files were written, and from what; also after the end. Rewrites `params.json`.

        `report` is {k, strategy, aggregation}; the override belongs to a regenerated summary and is kept even empty.
        """
        moment = datetime.fromtimestamp(self._clock()).astimezone()
        record: Json = {"generated_at": moment.isoformat(timespec="seconds"), "source": source, "report": report}
        if source == "summary" or benchmark_params_override is not None:
            record["benchmark_params_override"] = redact_keys(benchmark_params_override or {})
        return self.append(MetricArtifactsWritten(payload=record))

    def record_loss(self, count: int, first_timestamp: float, last_timestamp: float, reason: str) -> int:
        """Note that `count` events of that time could not be written; the note has the time of the last of them.

        So it stands in order: after what was written before the loss, and before what comes next.
        """
        times = {"first_timestamp": first_timestamp, "last_timestamp": last_timestamp}
        payload = {"count": count, **times, "reason": reason}
        return self.append(RecordsLost(timestamp=last_timestamp, payload=payload))

    def note_loss(self, count: int, reason: str) -> None:
        """Note in the lock file what `record_loss` can't append; 0 once it could."""
        self.log.note_loss(count, redact_text(reason))

    def keep_plans(self, plans: Json) -> None:
        """Keep the resolved plans of reused attempts in `run_info.json`; they have no event of their own."""
        self.live.keep_plans(plans)

    def save_params(self) -> None:
        """Write `params.json`: done by itself with the first `partial_saved` and after aggregation."""
        if self._request is not None and self._keeps_run_info:
            content = codec.dump_pretty(self._request.params_record(self._secrets), sort_keys=True)
            replace_file(self.run_dir / PARAMS_NAME, content, durable=False, files=self._files)
            self._params_written = True

    def _write_due_params(self, noticed: Noticed) -> None:
        if noticed.artifacts or not self._params_written:
            try:
                self.save_params()
            except OutputError as error:
                logger.warning("%s", error)

    # -- the end

    def finish(self, status: TerminalStatus = "completed", error: str | None = None) -> int:
        """Append `run_finished` and bring both snapshots up to it before returning."""
        payload = RunFinishedPayload(error=error) if error else RunFinishedPayload()
        return self.append(RunFinished(status=status, payload=payload))

    async def finish_async(self, status: TerminalStatus = "completed", error: str | None = None) -> int:
        """Finish the run as `finish` does, without holding the event loop for the snapshots and the fsync."""
        import asyncio

        return await asyncio.to_thread(self.finish, status, error)

    def close(self) -> None:
        """Stop recording: `open` goes on later. Harmless when done twice.

        Where the run has no terminal event, the lock file notes that it was let go without one.
        """
        if self._pid != os.getpid():
            return  # a forked child: nothing here is its own
        atexit.unregister(self.close)
        try:
            self.live.close()
            if self.log.failure is None:
                self.live.refresh()
        finally:
            try:
                if not self._finished:
                    self.log.note_left()
                self.log.close()
            finally:
                if self._run_log is not None:
                    self._run_log.close()

    def __enter__(self) -> "RunRecorder":
        if self._run_log is not None and self._bound is None:
            self._bound = self._run_log.bind()
            self._bound.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if self._pid != os.getpid():
            return False
        try:
            if error is not None and not self._finished and self.log.failure is None:
                self._finish_for(error)
            elif error is None and not self._finished:
                logger.warning("%s: the run was left without finish(): it has no terminal event", self.run_dir)
            self.close()
        except CompassError as second:
            if error is None:
                raise
            error.add_note(f"and the run's end could not be recorded: {second}")
        finally:
            if self._bound is not None:
                self._bound.__exit__(None, None, None)
                self._bound = None
        return False

    async def __aenter__(self) -> "RunRecorder":
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        return self.__exit__(kind, error, trace)

    def _finish_for(self, error: BaseException) -> None:
        self.finish(status_for(error), f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def status_for(error: BaseException) -> TerminalStatus:
    """Return how a run ends that an exception leaves: cancelled where somebody stopped it, failed otherwise."""
    stopped = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
    # By name, so that a program without asyncio need not load it.
    return "cancelled" if stopped or type(error).__name__ == "CancelledError" else "failed"
