"""The public API of compass-es, and its command.

    import compass_es

    stream = compass_es.scan("results/…/RUN")
    for record in stream:
        print(record.seq, record.event)

Each name is loaded when it is first used, so importing this module costs little.
"""

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from eventstore.errors import (
        CompassError,
        DamagedError,
        InputError,
        LockedError,
        LogPoisonedError,
        MalformedLineError,
        OutputError,
        QueryError,
        RefusedError,
        UsageError,
    )
    from eventstore.format.events import (
        AttemptFinished,
        AttemptRetry,
        AttemptRetryPayload,
        AttemptStarted,
        ExecutionPlanResolved,
        MetricArtifactsWritten,
        PartialSaved,
        PhaseChanged,
        RecordsLost,
        ReuseLoaded,
        ReuseLoadedPayload,
        RunFinished,
        RunFinishedPayload,
        RunStarted,
        RunStartedPayload,
        StreamRepaired,
        SummaryStarted,
        TaskFinished,
        TaskFinishedPayload,
        TasksLoaded,
        TasksLoadedPayload,
        TaskStarted,
        TaskStartedPayload,
        UnknownEvent,
    )
    from eventstore.history.sql.access import connect
    from eventstore.history.sql.questions import parameters as question_parameters
    from eventstore.history.sql.questions import question as canned_question
    from eventstore.operations.diagnose.diagnose import diagnose_run as diagnose
    from eventstore.operations.repair.results import recover_results
    from eventstore.operations.reports.schemas import schema_of
    from eventstore.operations.reuse.apply import apply_reuse
    from eventstore.operations.reuse.plan import plan_reuse
    from eventstore.operations.verify.verify import verify_paths as verify
    from eventstore.recording.agentcompass import reporter
    from eventstore.recording.recorder import RunRecorder
    from eventstore.recording.request import Request
    from eventstore.redaction.names import redact_keys
    from eventstore.redaction.redactor import Redactor, redact, secret_environment_values
    from eventstore.redaction.text import find_secrets, redact_text
    from eventstore.results.schema import AttemptResult, RetryDetail
    from eventstore.results.store import TaskStore
    from eventstore.results.task_dirs import find_task, task_dirs
    from eventstore.run.request_record import read_request
    from eventstore.run.run import Run
    from eventstore.stream.log import EventLog
    from eventstore.stream.moment import Moment
    from eventstore.stream.scan import scan
    from projections.reuse import Wanted as ReuseWanted
    from projections.snapshots.replay import replay

__all__ = [
    "AttemptFinished",
    "AttemptResult",
    "AttemptRetry",
    "AttemptRetryPayload",
    "AttemptStarted",
    "CompassError",
    "DamagedError",
    "EventLog",
    "ExecutionPlanResolved",
    "InputError",
    "LockedError",
    "LogPoisonedError",
    "MalformedLineError",
    "MetricArtifactsWritten",
    "Moment",
    "OutputError",
    "PartialSaved",
    "PhaseChanged",
    "QueryError",
    "RecordsLost",
    "Redactor",
    "RefusedError",
    "Request",
    "RetryDetail",
    "ReuseLoaded",
    "ReuseLoadedPayload",
    "ReuseWanted",
    "Run",
    "RunFinished",
    "RunFinishedPayload",
    "RunRecorder",
    "RunStarted",
    "RunStartedPayload",
    "StreamRepaired",
    "SummaryStarted",
    "TaskFinished",
    "TaskFinishedPayload",
    "TaskStarted",
    "TaskStartedPayload",
    "TaskStore",
    "TasksLoaded",
    "TasksLoadedPayload",
    "UnknownEvent",
    "UsageError",
    "apply_reuse",
    "canned_question",
    "connect",
    "diagnose",
    "find_secrets",
    "find_task",
    "main",
    "plan_reuse",
    "question_parameters",
    "read_request",
    "recover_results",
    "redact",
    "redact_keys",
    "redact_text",
    "replay",
    "reporter",
    "scan",
    "schema_of",
    "secret_environment_values",
    "task_dirs",
    "verify",
]

_HOMES = {
    "AttemptResult": "eventstore.results.schema",
    "EventLog": "eventstore.stream.log",
    "Moment": "eventstore.stream.moment",
    "Redactor": "eventstore.redaction.redactor",
    "Request": "eventstore.recording.request",
    "RetryDetail": "eventstore.results.schema",
    "ReuseWanted": "projections.reuse:Wanted",
    "Run": "eventstore.run.run",
    "RunRecorder": "eventstore.recording.recorder",
    "TaskStore": "eventstore.results.store",
    "apply_reuse": "eventstore.operations.reuse.apply",
    "canned_question": "eventstore.history.sql.questions:question",
    "connect": "eventstore.history.sql.access",
    "diagnose": "eventstore.operations.diagnose.diagnose:diagnose_run",
    "find_secrets": "eventstore.redaction.text",
    "find_task": "eventstore.results.task_dirs",
    "plan_reuse": "eventstore.operations.reuse.plan",
    "question_parameters": "eventstore.history.sql.questions:parameters",
    "read_request": "eventstore.run.request_record",
    "recover_results": "eventstore.operations.repair.results",
    "redact": "eventstore.redaction.redactor",
    "redact_keys": "eventstore.redaction.names",
    "redact_text": "eventstore.redaction.text",
    "replay": "projections.snapshots.replay",
    "reporter": "eventstore.recording.agentcompass",
    "scan": "eventstore.stream.scan",
    "schema_of": "eventstore.operations.reports.schemas",
    "secret_environment_values": "eventstore.redaction.redactor",
    "task_dirs": "eventstore.results.task_dirs",
    "verify": "eventstore.operations.verify.verify:verify_paths",
}
"""Public name → its module, and its name there where that differs. Errors and events have one module each."""

_PACKAGES = ("cli", "eventstore", "projections")
_OURS = b'__distribution__ = "compass-es"'
"""The line by which a file shows that it belongs to this distribution."""
_UNREADABLE, _INTERRUPTED = 3, 130
"""Exit codes, as in docs/cli.md. `cli` defines them too, and is not loaded yet where these are needed."""


def __getattr__(name: str) -> Any:
    """Return a public name, loaded from its module now."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    default = "eventstore.errors" if name.endswith("Error") else "eventstore.format.events"
    module, _, original = _HOMES.get(name, default).partition(":")
    value = globals()[name] = getattr(import_module(module), original or name)
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__]


def main(arguments: list[str] | None = None) -> None:
    """Run the command `compass-es` and exit with its code.

    `arguments` are the words after the command's name, by default those of this process. The packages `cli`,
    `eventstore` and `projections` are loaded from the folder of this file: other modules with these names on the
    search path do not count. Raises SystemExit always, with the exit codes of docs/cli.md.
    """
    try:
        try:
            _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            if arguments is None:
                _end_at_once_when_interrupted()
    except KeyboardInterrupt:
        _leave(_INTERRUPTED, "interrupted")


def _run(arguments: list[str]) -> NoReturn:
    try:
        _prefer_own_packages(arguments)
        from cli.main import main as run
    except ModuleNotFoundError as error:
        _fail(arguments, f"compass-es needs the module {error.name}, which is not installed", None)
    run(arguments)


def _end_at_once_when_interrupted() -> None:
    """Let Ctrl-C end this process without an exception: nobody is left to catch one while Python takes it down."""
    import signal

    def end(*_: object) -> None:
        os.write(2, b"interrupted\n")
        os._exit(_INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


class _OwnPackages:
    """A finder of our packages by their place on disk, asked before the search path is."""

    def __init__(self, folder: str) -> None:
        self.starts = {name: os.path.join(folder, name, "__init__.py") for name in _PACKAGES}

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Return where the package `name` is, None for a name that is not ours."""
        if name not in self.starts:
            return None
        from importlib.util import spec_from_file_location

        start = self.starts[name]
        return spec_from_file_location(name, start, submodule_search_locations=[os.path.dirname(start)])


def _prefer_own_packages(arguments: list[str]) -> None:
    """Let our three packages be found by their place on disk, whatever the search path holds."""
    finder = _OwnPackages(os.path.dirname(os.path.abspath(__file__)))
    for path in (*finder.starts.values(), os.path.join(os.path.dirname(finder.starts["cli"]), "main.py")):
        if not _is_ours(path):
            reason = f"{path} is missing or belongs to another package that is installed in the same place"
            _fail(arguments, f"{reason}: install compass-es in an environment of its own", path)
    for name, start in finder.starts.items():
        loaded = sys.modules.get(name)
        if loaded is not None and getattr(loaded, "__file__", None) != start:
            for foreign in [other for other in sys.modules if other == name or other.startswith(f"{name}.")]:
                del sys.modules[foreign]
    if not any(isinstance(known, _OwnPackages) for known in sys.meta_path):
        sys.meta_path.insert(0, finder)


def _is_ours(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return _OURS in file.read()
    except OSError:
        return False


def _fail(arguments: list[str], message: str, path: str | None) -> NoReturn:
    """End the command with one sentence, as its own errors end it."""
    if "--json" in arguments:
        import json

        error = {"kind": "unreadable", "message": message, "path": path}
        sys.stdout.write(json.dumps({"error": error}, indent=2) + "\n")
        raise SystemExit(_UNREADABLE)
    _leave(_UNREADABLE, f"compass-es: {message}")


def _leave(code: int, text: str) -> NoReturn:
    sys.stderr.write(text + "\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
