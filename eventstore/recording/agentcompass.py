"""What AgentCompass users plug in: a progress reporter that records the run through us.

    from agentcompass import run_evaluation
    from eventstore.agentcompass import reporter

    run_evaluation(benchmark=…, harness=…, model=…, on_progress=reporter())

AgentCompass 1.0.1 reserves the run directory and keeps `run.log`, `run_info.json` and `params.json` itself; the
reporter takes its stream and `progress.json`, from the first event on. Recording never stops an evaluation: what can't
be written is warned of, counted, and noted as `records_lost` as soon as writing works again. Nothing of AgentCompass is
imported before `reporter` is called. Limits of AgentCompass 1.0.1 are in docs/recording.md.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from eventstore.errors import CompassError, UsageError
from eventstore.format import codec
from eventstore.format.events import Event, Json, MetricArtifactsWritten, RunFinished
from eventstore.run.directory import PROGRESS_NAME, RUN_INFO_NAME, RUN_LOG_NAME, read_json_file
from eventstore.stream.encode import Origin
from eventstore.stream.group_commit import Durability
from eventstore.stream.scan import STREAM_NAME

from .progress_line import Display, ProgressLine
from .recorder import RunRecorder

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""How often opening the stream is tried again after it failed."""

OnEvent = Callable[[Event, Json], None]


def reporter(
    run_dir: str | os.PathLike[str] | None = None,
    *,
    durability: Durability = "group",
    display: Display = "auto",
    on_event: OnEvent | None = None,
) -> Any:
    """Return an object for `on_progress=` of AgentCompass 1.0.1: a `ProgressReporter` of its own kind.

    `run_dir` is found by itself, by the `run.log` that AgentCompass opens for the request; name it where there is none
    (analysis of existing results). One reporter serves any number of requests, one after the other. `display` is a line
    on stderr (`auto`: on a terminal; `plain`; `none`) in place of the display that AgentCompass switches off for a
    reporter. `on_event(event, progress)` is called with each event and the latest snapshot. Raises UsageError where
    AgentCompass is not installed.
    """
    try:
        base: Any = import_module("agentcompass.runtime.progress").ProgressReporter
    except ImportError as error:
        raise UsageError(f"AgentCompass can't be imported: {error}") from None

    # The type that AgentCompass asks for; its own constructor wants a request that only AgentCompass has.
    kind: Any = type("CompassReporter", (Recording, base), {"__doc__": Recording.__doc__})
    return kind(None if run_dir is None else Path(run_dir), durability, ProgressLine(display), on_event)


class Recording:
    """The reporter itself; `emit`, `close`, `paths`, `snapshot`, `run_id` are what AgentCompass uses."""

    def __init__(
        self, run_dir: Path | None, durability: Durability, line: ProgressLine, on_event: OnEvent | None
    ) -> None:
        self.run_dir, self.sinks = run_dir, list[Any]()
        self._named_dir = run_dir
        self.lost = 0
        """Events that could not be written so far and are not yet noted in the stream."""
        self._durability, self._line, self._on_event = durability, line, on_event
        self._recorder: RunRecorder | None = None
        self._lock = threading.RLock()
        self._lost_times: tuple[float, float] = (0.0, 0.0)
        self._reason = ""
        self._try_again_at = 0.0
        self._closed = False

    # -- what AgentCompass calls

    @property
    def run_id(self) -> str:
        """The id that AgentCompass gave the run; empty before the first event."""
        return self._recorder.run_id if self._recorder is not None else ""

    @property
    def snapshot(self) -> Json:
        """The latest progress snapshot; empty before the first event."""
        return self._recorder.progress if self._recorder is not None else {}

    @property
    def paths(self) -> dict[str, str]:
        """The files that this reporter writes, as AgentCompass lists them in its results."""
        if self.run_dir is None:
            return {}
        return {
            "progress_jsonl": str(self.run_dir / STREAM_NAME),
            "progress_json": str(self.run_dir / PROGRESS_NAME),
        }

    def emit(
        self,
        event: str,
        *,
        task_id: str | None = None,
        category: str | None = None,
        attempt: int | None = None,
        phase: str | None = None,
        status: str | None = None,
        payload: Json | None = None,
    ) -> None:
        """Record one event. Never raises for what goes wrong with recording.

        A `run_started` after the end of a request begins the next one, in the directory of that request.
        """
        if event == "run_started" and (self._closed or (self._recorder is not None and self._recorder.finished)):
            self._begin_next()
        if self._closed:
            return
        now = time.time()
        fields = {"task_id": task_id, "category": category, "attempt": attempt, "phase": phase, "status": status}
        try:
            recorder = self._attached()
            built = build_event(recorder.run_id, event, now, fields, payload or {})
            self._record(recorder, built)
        except Exception as error:  # whatever it is, the evaluation goes on
            self._note_loss(now, error)
            return
        self._call_back(built, recorder)

    def close(self) -> None:
        """Let the stream go; events that come later are ignored, until a `run_started` begins the next request."""
        with self._lock:
            self._closed = True
            try:
                if self._recorder is not None:
                    self._note_losses(self._reattached() if self.lost else self._recorder)
                    self._line.end(self._recorder.progress)
                    self._recorder.close()
            except Exception as error:
                logger.warning("the recording of %s could not be ended well: %s", self.run_dir, error)
            if self.lost:
                logger.error("%d events of %s could not be recorded: %s", self.lost, self.run_dir, self._reason)

    # -- recording

    def _begin_next(self) -> None:
        """Forget the request that is over; the next one has a directory, a stream and losses of its own."""
        if not self._closed:
            self.close()
        with self._lock:
            self._recorder, self._closed = None, False
            self.lost, self._reason, self._try_again_at = 0, "", 0.0
            found = find_run_dir()
            self.run_dir = found if found is not None else self._named_dir

    def _record(self, recorder: RunRecorder, event: Event) -> None:
        if self.lost:
            self._note_losses(recorder)
        if isinstance(event, RunFinished):
            self._note_artifacts(recorder, event.timestamp)
        recorder.append(event)

    def _attached(self) -> RunRecorder:
        """The recorder; opened with the first event, and again after a failure that can't be repaired in place."""
        recorder = self._recorder
        if recorder is not None and recorder.log.failure is None:
            return recorder
        with self._lock:
            if self._recorder is None or self._recorder.log.failure is not None:
                if time.monotonic() < self._try_again_at:
                    raise UsageError(self._reason or "the stream can't be written")
                self._try_again_at = time.monotonic() + RETRY_SECONDS
                self._reattached()
            assert self._recorder is not None
            return self._recorder

    def _reattached(self) -> RunRecorder:
        if self._recorder is not None:
            if self._recorder.log.failure is None:
                return self._recorder
            self._recorder.close()
        self.run_dir = self.run_dir or find_run_dir()
        if self.run_dir is None:
            raise UsageError("no run directory was found; name it: reporter(run_dir=…)")
        self._recorder = RunRecorder.attach(
            self.run_dir, durability=self._durability, origin=find_origin(), on_progress=self._line.show
        )
        return self._recorder

    def _note_artifacts(self, recorder: RunRecorder, now: float) -> None:
        """AgentCompass writes this record to run_info.json alone; with it in the stream, the file can be rebuilt."""
        info = read_json_file(recorder.run_dir / RUN_INFO_NAME).members or {}
        artifacts = info.get("metric_artifacts")
        if isinstance(artifacts, dict) and artifacts:
            recorder.append(MetricArtifactsWritten(timestamp=now, payload=artifacts))

    # -- losses

    def _note_loss(self, now: float, error: Exception) -> None:
        with self._lock:
            self._lost_times = (self._lost_times[0] if self.lost else now, now)
            self.lost += 1
            self._reason = error.message if isinstance(error, CompassError) else f"{type(error).__name__}: {error}"
            if self._recorder is not None:
                self._recorder.note_loss(self.lost, self._reason)
            if self.lost == 1:
                logger.error(
                    "RECORDING FAILED, events of this run are being lost (the evaluation goes on): %s", self._reason
                )
            elif self.lost & (self.lost - 1) == 0:  # 2, 4, 8, …
                logger.warning("%d events of this run could not be recorded: %s", self.lost, self._reason)

    def _note_losses(self, recorder: RunRecorder) -> None:
        with self._lock:
            if self.lost:
                recorder.record_loss(self.lost, *self._lost_times, self._reason)
                logger.warning("recording works again; %d events are lost", self.lost)
                self.lost = 0
                recorder.note_loss(0, "")

    def _call_back(self, event: Event, recorder: RunRecorder) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event, recorder.progress)
        except Exception:
            logger.exception("on_event failed")


def build_event(run_id: str, name: str, now: float, fields: Json, payload: Json) -> Event:
    """The typed event of what AgentCompass emits; values without a form in JSON become their text, as it does."""
    members = {"run_id": run_id, "event": name, "timestamp": now, **fields, "payload": dict(payload)}
    event = codec.build_event(members)
    try:
        codec.encode(event)
        return event
    except (TypeError, ValueError, RecursionError):
        return codec.build_event(json.loads(json.dumps(members, default=str)))


def find_run_dir() -> Path | None:
    """Where AgentCompass logs this request: the folder of the open `run.log` that takes records of this context."""
    probe = logging.makeLogRecord({"name": "agentcompass.runtime.runner", "levelno": logging.CRITICAL})
    for handler in logging.getLogger().handlers:
        path = Path(handler.baseFilename) if isinstance(handler, logging.FileHandler) else None
        if path is not None and path.name == RUN_LOG_NAME and handler.filter(probe):
            return path.parent
    return None


def find_origin() -> Origin:
    """Return where AgentCompass says this request stands in its orchestration; empty where it says nothing."""
    try:
        context = import_module("agentcompass.runtime.logging").get_log_context()
        if context.request_key:
            return Origin(
                str(context.orchestration_id),
                str(context.request_key),
                str(context.request_name),
                int(context.request_index),
            )
    except (ImportError, AttributeError, TypeError, ValueError):
        pass
    return Origin()
