"""The rules about a run's small files: against the stream, against each other, and against the specification.

Pure: parsed files and folded states go in, findings come out, so that an embedding program can run them on what it has.

    facts = Facts(name="r_ok", progress=Document(members), …)
    check_files(notes, facts, replayed, watched)

`replayed` is the state of `projections.snapshots.replay`, `watched` that of `projections.verify.lifecycle`, after the
whole stream.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from msgspec import Struct

from eventstore.format.events import TERMINAL_STATUSES, Json
from eventstore.format.values import as_object, short
from eventstore.redaction.redactor import redact_text
from projections.snapshots import progress, replay, run_info

from . import lifecycle
from .findings import Notes
from .plans import TaskPlans, check_plans
from .progress import check_counts

SCHEMA, OLD_SCHEMA = "agentcompass.run_info.v3", "agentcompass.run_info.v2"
REQUIRED = ("schema_version", "run_id", "started_at", "request")
OPTIONAL = ("metric_artifacts", "reused_from", "resolved_execution_plans", "status", "finished_at", "error")
IGNORED = ("execution_fingerprints", "task_fingerprints")  # of older records: ignored by specification
PARAMS_SECTIONS = ("model", "benchmark", "execution", "output")
CLOCK_TOLERANCE_SECONDS = 60.0
"""run_info.json and the stream take their times at different moments, and to the second."""


class Document(Struct, frozen=True):
    """A small JSON file: its object, or the problem in words; neither where there is no such file."""

    members: Json | None = None
    problem: str | None = None

    @property
    def missing(self) -> bool:
        """True where there is no such file."""
        return self.members is None and self.problem is None


class Facts(Struct, frozen=True):
    """What a run directory holds beside its stream. `name` is the directory's.

    `plans` are the recorded plans where `run_info` was parsed without them (see `verify_plans.TaskPlans`).
    `source` is the run_info.json of the run that `reused_from` names, where it was found. `state_at` folds the stream
    up to the last record with a timestamp: `(records, progress.json)`; it is asked only where the snapshot is stale.
    """

    name: str
    stream_found: bool = True
    progress: Document = Document()
    run_info: Document = Document()
    plans: dict[str, TaskPlans] | None = None
    params: Document = Document()
    metrics: Document = Document()
    source: Document = Document()
    has_details: bool = False
    has_results: bool = False
    live: bool = False
    state_at: Callable[[float], tuple[int, Json] | None] = lambda timestamp: None


def check_files(notes: Notes, facts: Facts, replayed: replay.State, watched: lifecycle.State) -> None:
    """All rules of the groups counts, run_info and params."""
    folded = progress.snapshot(replayed.progress) if watched.events else None
    check_counts(notes, facts, folded, watched, replayed.progress.counts.first_timestamp)
    _check_events(notes, facts, watched)
    stream_run_id = replayed.run_info.run_id
    _check_run_ids(notes, facts, stream_run_id)
    _check_run_info(notes, facts, replayed, watched)
    _check_metrics(notes, facts)
    _check_params(notes, facts)


def _check_events(notes: Notes, facts: Facts, watched: lifecycle.State) -> None:
    if watched.events:
        return
    known = replay.known_without_stream(facts.progress.members, facts.run_info.members, results=facts.has_results)
    if known is not None:
        what = "no event can be read from the stream" if facts.stream_found else "there is no stream"
        notes.add("events_lost", f"{what}, and {known}")


# -- run ids


def _check_run_ids(notes: Notes, facts: Facts, stream_run_id: str | None) -> None:
    request = as_object((facts.run_info.members or {}).get("request"))
    found = [
        ("run_info.json", (facts.run_info.members or {}).get("run_id"), "run_id"),
        ("run_info.json", as_object(request.get("output")).get("run_id"), "request.output.run_id"),
        ("progress.json", (facts.progress.members or {}).get("run_id"), "run_id"),
        ("params.json", as_object((facts.params.members or {}).get("output")).get("run_id"), "output.run_id"),
    ]
    expected, whose = stream_run_id, "the stream's"
    if expected is None:
        expected = next((value for _, value, _ in found if isinstance(value, str)), None)
        whose = "another file's"
    if expected is None:
        return
    for file, value, name in found:
        if value is not None and value != expected:
            notes.add("run_id_differs", f"{name} is {short(value)}, {whose} is {short(expected)}", file=file)
    if facts.name and facts.name != expected:
        notes.add("directory_name", f"the directory is {short(facts.name)}, the run id {short(expected)}")


# -- run_info.json


def _check_run_info(notes: Notes, facts: Facts, replayed: replay.State, watched: lifecycle.State) -> None:
    document = facts.run_info
    if document.missing:
        notes.add("run_info_missing", "there is no run_info.json", file="run_info.json")
    if document.problem is not None:
        notes.add("run_info_unreadable", document.problem, file="run_info.json")
    info = document.members
    if info is None:
        return
    _check_schema(notes, info)
    _note_private(notes, "run_info.json", info.get("request"), ("request",), below_params=False)
    _check_times(notes, info, watched, replayed.progress.counts.first_timestamp)
    _check_reuse(notes, facts, info, watched)
    if run_info.is_analysis_only(replayed.run_info):
        return
    _check_end(notes, info, watched, facts.stream_found)
    _check_identity(notes, info, watched)
    recorded = facts.plans if facts.plans is not None else info.get("resolved_execution_plans")
    check_plans(notes, recorded, replayed.run_info.plans, watched, reuses="reused_from" in info)


def _check_schema(notes: Notes, info: Json) -> None:
    schema = info.get("schema_version")
    if schema == OLD_SCHEMA:
        notes.add("run_info_old_schema", f"schema_version is {short(schema)}", file="run_info.json")
    elif schema is not None and schema != SCHEMA:
        notes.add("run_info_schema", f"schema_version is {short(schema)}", file="run_info.json")
    missing = [name for name in REQUIRED if info.get(name) is None]
    if missing:
        notes.add("run_info_fields", f"fields missing: {', '.join(missing)}", file="run_info.json")
    unknown = [name for name in info if name not in (*REQUIRED, *OPTIONAL, *IGNORED)]
    if unknown:
        words = f"fields beyond the specification: {short(', '.join(unknown))}"
        notes.add("run_info_unknown_field", words, file="run_info.json")


def _check_end(notes: Notes, info: Json, watched: lifecycle.State, stream_found: bool) -> None:
    status, ended = info.get("status"), watched.ended
    if status is not None and status not in TERMINAL_STATUSES:
        notes.add("run_info_status", f"status is {short(status)}, which is no final state", file="run_info.json")
    if ended is None:
        if status is not None and watched.events and status in TERMINAL_STATUSES:
            words = f"status is {short(status)}, and the stream has no run_finished"
            notes.add("status_without_end", words, file="run_info.json")
        return
    said = ended["status"] or "completed"
    if status != said:
        words = f"status is {short(status)}, run_finished says {short(said)}"
        notes.add("run_info_status", words, file="run_info.json")
    if status is not None and info.get("finished_at") is None:
        notes.add("run_info_fields", "fields missing: finished_at", file="run_info.json")
    _check_error(notes, info.get("error"), ended["payload"].get("error"))


def _check_error(notes: Notes, stored: Any, said: Any) -> None:
    if stored == said or (not stored and not said):
        return
    if isinstance(stored, str) and isinstance(said, str) and redact_text(stored) == redact_text(said):
        return
    notes.add("run_info_error", f"error is {short(stored)}, run_finished says {short(said)}", file="run_info.json")


def _check_times(notes: Notes, info: Json, watched: lifecycle.State, first_timestamp: float | None) -> None:
    moments: dict[str, float] = {}
    for name in ("started_at", "finished_at"):
        if info.get(name) is None:
            continue
        moment = _moment(info[name])
        if moment is None:
            words = f"{name} is {short(info[name])}, no ISO 8601 time with a time zone"
            notes.add("run_info_times", words, file="run_info.json")
        else:
            moments[name] = moment
    if watched.clock_steps or (watched.analyzes and not watched.evaluates):
        return  # the clock is known to be wrong, or the stream is from another day
    _compare_times(notes, moments, watched, first_timestamp)


def _compare_times(
    notes: Notes, moments: dict[str, float], watched: lifecycle.State, first_timestamp: float | None
) -> None:
    started, finished = moments.get("started_at"), moments.get("finished_at")
    say: Callable[[str], None] = lambda words: notes.add("run_info_times", words, file="run_info.json")  # noqa: E731
    if started is not None and finished is not None and finished < started:
        say(f"finished_at is {started - finished:.0f} s before started_at")
    elif started is not None and first_timestamp is not None and first_timestamp < started - 2.0:
        say(f"started_at is {started - first_timestamp:.0f} s after the first event")
    elif finished is not None and watched.ended is not None and lifecycle.is_moment(watched.ended["timestamp"]):
        apart = finished - watched.ended["timestamp"]
        if abs(apart) > CLOCK_TOLERANCE_SECONDS:
            say(f"finished_at is {abs(apart):.0f} s {'after' if apart > 0 else 'before'} run_finished")


def _check_identity(notes: Notes, info: Json, watched: lifecycle.State) -> None:
    request = info.get("request")
    if not isinstance(request, dict) or watched.started is None:
        return
    for name in progress.IDENTITY:
        said, asked = watched.started.get(name), as_object(request.get(name)).get("id")
        if said is not None and said != asked:
            words = f"{name} is {short(said)} in run_started, {short(asked)} in the request"
            notes.add("identity_differs", words, file="run_info.json")


# -- reuse


def _check_reuse(notes: Notes, facts: Facts, info: Json, watched: lifecycle.State) -> None:
    reused_from = info.get("reused_from")
    if reused_from is None:
        if watched.reused_tasks:
            words = f"{watched.reused_tasks} tasks were reused, and reused_from is not there"
            notes.add("reused_from_missing", words, file="run_info.json")
        return
    if facts.source.members is None:
        words = f"run {short(as_object(reused_from).get('run_id'))} is not beside this one"
        notes.add("reused_source_missing", words, file="run_info.json")
        return
    source, request = as_object(facts.source.members.get("request")), as_object(info.get("request"))
    for path in (("benchmark", "id"), ("execution", "attempts")):
        theirs, ours = _at(source, path), _at(request, path)
        if theirs != ours:
            words = f"{'.'.join(path)} is {short(theirs)} in the source, {short(ours)} here"
            notes.add("reused_source_differs", words, file="run_info.json")


# -- metrics.json


def _check_metrics(notes: Notes, facts: Facts) -> None:
    info, metrics = facts.run_info.members, facts.metrics
    if metrics.problem is not None:
        notes.add("metrics_unreadable", metrics.problem, file="metrics.json")
    if info is None:
        return
    artifacts = info.get("metric_artifacts")
    if metrics.members is None:
        if artifacts is not None and metrics.missing:
            notes.add("metrics_missing", "metric_artifacts is there, metrics.json is not", file="metrics.json")
        return
    if artifacts is None:
        words = "metrics.json is there, metric_artifacts is not"
        notes.add("metric_artifacts_missing", words, file="run_info.json")
        return
    report = as_object(as_object(artifacts).get("report"))
    for name in ("k", "strategy", "aggregation"):
        if metrics.members.get(name) != report.get(name):
            words = f"{name} is {short(metrics.members.get(name))} in metrics.json, {short(report.get(name))} in metric_artifacts.report"  # noqa: E501
            notes.add("metrics_differ", words, file="metrics.json")
    plan = _at(as_object(info.get("request")), ("execution", "attempts"))
    for name in ("k", "strategy"):
        if isinstance(plan, dict) and plan.get(name) != report.get(name):
            words = f"{name} is {short(report.get(name))} in metric_artifacts.report, {short(plan.get(name))} in the request"  # noqa: E501
            notes.add("metrics_differ", words, file="run_info.json")


# -- params.json


def _check_params(notes: Notes, facts: Facts) -> None:
    params = facts.params
    if params.problem is not None:
        notes.add("params_unreadable", params.problem, file="params.json")
    if params.missing and facts.has_details and not facts.live:
        notes.add("params_missing", "there are task details, and no params.json", file="params.json")
    if params.members is None:
        return
    extra = [name for name in params.members if name not in PARAMS_SECTIONS]
    if extra:
        words = f"sections beyond the specification: {short(', '.join(extra))}"
        notes.add("params_extra", words, file="params.json")
    request = (facts.run_info.members or {}).get("request")
    _note_private(notes, "params.json", params.members, (), below_params=True)
    if isinstance(request, dict):
        _compare_params(notes, params.members, request, ())


def _note_private(notes: Notes, file: str, value: Any, path: tuple[str, ...], *, below_params: bool) -> None:
    """Members of parameter objects that are for the running program alone; their values are not repeated."""
    members: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        members = ((str(index), item) for index, item in enumerate(value))
    for name, item in members:
        here = (*path, name)
        if below_params and name.startswith("_"):
            notes.add("private_parameter", f"{short('.'.join(here))} was not removed", file=file)
        else:
            _note_private(notes, file, item, here, below_params=below_params or name == "params")


def _compare_params(notes: Notes, params: Json, request: Json, path: tuple[str, ...]) -> None:
    """What stands in both must be the same; params.json may lack anything, and hold effective benchmark parameters."""
    for name, ours in params.items():
        if name not in request:
            continue
        theirs, here = request[name], (*path, name)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            _compare_params(notes, ours, theirs, here)
        elif ours != theirs:
            words = f"{'.'.join(here)} is {short(ours)}, the request says {short(theirs)}"
            notes.add("params_differ", words, file="params.json")


# -- helpers


def _at(members: Json, path: tuple[str, ...]) -> Any:
    value: Any = members
    for name in path:
        value = as_object(value).get(name)
    return value


def _moment(text: Any) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return None if moment.tzinfo is None else moment.timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
