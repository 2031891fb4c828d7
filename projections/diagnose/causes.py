"""The closed list of causes that a diagnosis may name, each with whom it blames, and the texts that give them away.

Codes are stable. `blame` is one of six words:

infrastructure  machines, networks, disks, sandboxes, data sets, and the evaluation's own runtime
model           the model under evaluation, or the service that serves it
harness         the program that drives the model, or the task that it was given
grader          scoring and verification, with whatever judges they ask
user            a person stopped it, or a limit that a person had set
unknown         the records don't tell
"""

import re
from typing import Literal, TypeAlias

from msgspec import Struct

Blame: TypeAlias = Literal["infrastructure", "model", "harness", "grader", "user", "unknown"]
BLAMES: tuple[Blame, ...] = ("infrastructure", "model", "harness", "grader", "user", "unknown")


class Cause(Struct, frozen=True):
    """One row: a code, whom it blames, what it says, and what to do about it.

    A `generic` code names the place of a failure and not yet its reason.
    """

    code: str
    blame: Blame
    sentence: str
    advice: str
    generic: bool = False


_ROWS = (
    # -- machines, networks, disks, data
    Cause(
        "disk_full",
        "infrastructure",
        "a disk was full (or a quota or a limit of file size used up)",
        "free space where results are written, then resume with reuse",
    ),
    Cause(
        "out_of_memory",
        "infrastructure",
        "memory ran out (or the out-of-memory killer struck)",
        "lower the task concurrency or give more memory, then resume with reuse",
    ),
    Cause(
        "too_many_open_files",
        "infrastructure",
        "the limit of open files was reached",
        "raise `ulimit -n` or lower the task concurrency",
    ),
    Cause(
        "sandbox_failed",
        "infrastructure",
        "an environment (sandbox) could not be created, or failed",
        "check the environment's provider, then resume with reuse",
    ),
    Cause(
        "sandbox_never_opened",
        "infrastructure",
        "tasks waited for an environment (sandbox) that never opened",
        "check the environment's provider and its quota, then resume with reuse",
    ),
    Cause(
        "tasks_not_loaded",
        "infrastructure",
        "the tasks could not be loaded from the data set",
        "check the data set's files and the benchmark's parameters, then start again",
    ),
    Cause("no_tasks", "user", "no task was selected, so nothing ran", "check the benchmark's filters and parameters"),
    Cause(
        "artifacts_lost",
        "infrastructure",
        "artifacts of an attempt could not be collected",
        "check the environment's file transfer and the artifact limits",
    ),
    Cause(
        "cleanup_failed",
        "infrastructure",
        "an environment or harness could not be released",
        "release what is still open by hand",
        True,
    ),
    Cause("setup_failed", "infrastructure", "setting up an attempt failed", "see the message and run.log", True),
    Cause(
        "machine_stopped",
        "infrastructure",
        "the machine stopped or was started again during the run",
        "resume with reuse; results that were published are whole",
    ),
    Cause(
        "unwritable_text",
        "infrastructure",
        "a result holds text that UTF-8 can't hold (a lone surrogate), and saving it raised",
        "skip or mend the task that it names, then resume with reuse",
    ),
    Cause(
        "summary_failed",
        "infrastructure",
        "the final summary failed; task results are not touched by that",
        "compare params.json with the request, then regenerate the summary",
    ),
    # -- the records themselves
    Cause(
        "records_stopped",
        "infrastructure",
        "the stream stopped before the run did",
        "trust run_info.json, run.log and the details; the stream ends early",
    ),
    Cause(
        "records_lost",
        "infrastructure",
        "records that had been written are missing from the stream",
        "see `compass-es verify`, and `compass-es repair` for a plan",
    ),
    Cause(
        "records_unreadable",
        "infrastructure",
        "a file of the run's records can't be read",
        "see `compass-es verify`; `compass-es replay` can rebuild run_info.json and progress.json",
    ),
    Cause(
        "records_contradict",
        "infrastructure",
        "the records of the run contradict each other",
        "`compass-es verify` lists every contradiction; believe no side before you know which one is right",
    ),
    Cause(
        "two_writers",
        "infrastructure",
        "two writers wrote into one run directory",
        "find the second process; never give two requests one run id",
    ),
    Cause(
        "stream_damaged",
        "infrastructure",
        "the stream is damaged",
        "see `compass-es verify`, and `compass-es repair` for a plan",
    ),
    Cause(
        "clock_step",
        "infrastructure",
        "the clock stepped back during the run",
        "times and durations across the step are wrong; counts and results are not",
    ),
    # -- the model
    Cause(
        "model_rate_limited",
        "model",
        "the model's service refused requests: rate limit (HTTP 429)",
        "lower the task concurrency or raise the rate limit, then resume with reuse",
    ),
    Cause(
        "model_quota_used_up",
        "model",
        "the model's service refused requests: no credit or quota left",
        "raise the quota, then resume with reuse",
    ),
    Cause(
        "model_refused_key",
        "model",
        "the model's service refused the credentials (HTTP 401 or 403)",
        "give a valid key, then resume with reuse",
    ),
    Cause(
        "model_unreachable",
        "model",
        "the model's service could not be reached: no connection",
        "start the model's server or check its address, then resume with reuse",
    ),
    Cause(
        "model_server_error",
        "model",
        "the model's service failed (HTTP 5xx)",
        "check the model's server, then resume with reuse",
    ),
    Cause(
        "model_timeout",
        "model",
        "the model's service did not answer in time",
        "check the model's server and the request timeout, then resume with reuse",
    ),
    Cause(
        "context_too_long",
        "model",
        "requests were longer than the model's context",
        "shorten the prompts or limit the steps of the harness",
    ),
    Cause(
        "model_refused_request",
        "model",
        "the model's service refused requests (HTTP 400, 404 or 422)",
        "compare the request's parameters with what the model's service takes",
    ),
    Cause("model_failed", "model", "calls of the model failed", "see the messages", True),
    # -- harness, task, grader
    Cause("harness_failed", "harness", "the harness (or the task it ran) failed", "see the message and run.log", True),
    Cause(
        "attempt_timed_out",
        "harness",
        "attempts ran into their time limit",
        "compare the limit with how long siblings took",
        True,
    ),
    Cause("agent_stuck", "harness", "attempts hung while the agent ran", "look at the tasks in flight"),
    Cause(
        "poisoned_task",
        "harness",
        "one task failed every time while its siblings did not",
        "look at that task; leave it out or mend it, then resume with reuse",
    ),
    Cause(
        "grader_failed",
        "grader",
        "scoring (the grader) failed",
        "mend the grader; reuse keeps the agent's outputs",
        True,
    ),
    Cause(
        "grader_timeout",
        "grader",
        "scoring (the grader) ran into its time limit",
        "check the grader; reuse keeps the agent's outputs",
        True,
    ),
    Cause("grader_stuck", "grader", "scoring (the grader) hung", "look at the tasks in flight"),
    # -- stops
    Cause(
        "stopped_by_user",
        "user",
        "it was cancelled: Ctrl-C, a call that cancels, or code that ended the process (sys.exit)",
        "if nobody stopped it, look at what the tasks in flight ran; resume with reuse",
    ),
    Cause(
        "cancelled_with_others",
        "unknown",
        "it was cancelled together with its orchestration, for another's error",
        "diagnose the other runs of the same launch",
    ),
    Cause(
        "deadline_exceeded",
        "user",
        "the time limit of the whole request ran out",
        "raise the limit, or see what took so long; then resume with reuse",
    ),
    Cause(
        "left_unfinished",
        "infrastructure",
        "its recorder was let go in order, and finish() was not called: the run has no end",
        "call finish() where the evaluation ends; `compass-es close` gives this run its end",
    ),
    Cause("terminated_by_signal", "unknown", "a signal ended the process", "find out who sent it; resume with reuse"),
    Cause(
        "process_died",
        "unknown",
        "its process died without a terminal event: killed (SIGKILL, SIGTERM, out of "
        "memory) or its machine stopped; the records don't tell which",
        "see the machine's own log (`journalctl -k`, the scheduler's), then resume with reuse",
    ),
    Cause("stalled", "unknown", "it lives but stands still, far beyond its own history", "look at the tasks in flight"),
    Cause(
        "unknown",
        "unknown",
        "unknown: the records hold no evidence for a cause known here",
        "see run.log and the records of whoever started it",
    ),
)

CAUSES: dict[str, Cause] = {row.code: row for row in _ROWS}
"""Every cause by its code, in the order of docs/diagnose.md."""


def _text(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _status(numbers: str) -> str:
    """Return a number as a status code, and not as part of a task's name."""
    return rf"(?:HTTP(?:/[\d.]+)?|code|status)\W{{0,3}}(?:{numbers})\b"


_ANYWHERE = (
    (
        "disk_full",
        _text(
            r"no space left on device|\bENOSPC\b|\[Errno 28\]|disk quota exceeded|\[Errno 122\]"
            r"|\bEFBIG\b|\[Errno 27\]|OSError: File too large"
        ),
    ),
    (
        "out_of_memory",
        _text(
            r"\bMemoryError\b|out of memory|\bOOM\b|oom[-_ ]?kill|cannot allocate memory|\[Errno 12\]"
            r"|(?:exit(?:ed)?(?: with)?|return)[ -]?(?:code|status)?\W{0,2}137\b"
        ),
    ),
    ("too_many_open_files", _text(r"too many open files|\[Errno 24\]")),
    ("unwritable_text", _text(r"surrogates not allowed")),
)
_MODEL = (
    ("model_quota_used_up", _text(r"insufficient[_ ]quota|billing|payment required|" + _status("402"))),
    ("model_rate_limited", _text(r"rate.?limit|too many requests|" + _status("429"))),
    (
        "model_refused_key",
        _text(r"AuthenticationError|PermissionDenied|invalid api key|unauthori[sz]ed|" + _status("401|403")),
    ),
    ("context_too_long", _text(r"context[_ ](?:length|window)|maximum context|prompt is too long|too many tokens")),
    ("model_refused_request", _text(r"BadRequestError|NotFoundError|UnprocessableEntity|" + _status("400|404|422"))),
    ("model_timeout", _text(r"APITimeout|timed? ?out|TimeoutError|TimeoutException|" + _status("408|504"))),
    (
        "model_server_error",
        _text(r"InternalServerError|ServiceUnavailable|overloaded|bad gateway|" + _status(r"5\d\d")),
    ),
    (
        "model_unreachable",
        _text(
            r"connection refused|APIConnectionError|ConnectError|connection error|reset by peer|"
            r"name or service not known|name resolution|server disconnected|"
            r"network is unreachable|connection aborted|all connection attempts failed"
        ),
    ),
)
_TIMEOUT = _text(r"timed? ?out|TimeoutError|TimeoutException|deadline")
_MODEL_API = _text(
    r"\bopenai\b|\banthropic\b|RateLimitError|APIConnectionError|APITimeout|APIStatusError|"
    r"AuthenticationError|chat.?completion|/v1\b"
)
_UNPLACED = (
    ("stopped_by_user", _text(r"KeyboardInterrupt|\bSIGINT\b|interrupted by user|ctrl-c")),
    (
        "terminated_by_signal",
        _text(
            r"\bSIGTERM\b|\bSIGKILL\b|\bSIGHUP\b|received signal|killed by signal|^Killed$|"
            r"^Terminated$"
        ),
    ),
    ("sandbox_failed", _text(r"sandbox|container (?:failed|died|exited|not)|docker|EnvironmentSetupError")),
    ("deadline_exceeded", _text(r"orchestration deadline exceeded|request deadline")),
)
_BY_CODE = {
    "environment_failed": "sandbox_failed",
    "setup_failed": "setup_failed",
    "harness_failed": "harness_failed",
    "artifact_transfer_failed": "artifacts_lost",
    "judge_failed": "grader_failed",
}
_BY_PHASE = {
    "setup": "setup_failed",
    "run": "harness_failed",
    "collect": "artifacts_lost",
    "evaluate": "grader_failed",
    "cleanup": "cleanup_failed",
}
_BY_STAGE = {
    "open_environment": "sandbox_failed",
    "evaluate_environment": "sandbox_failed",
    "evaluation_environment": "sandbox_failed",
    "prepare_task": "setup_failed",
    "plan": "setup_failed",
    "start_harness": "harness_failed",
    "run_harness": "harness_failed",
    "run_task": "harness_failed",
    "collect_harness_result": "harness_failed",
    "collect_artifacts": "artifacts_lost",
    "download_artifacts": "artifacts_lost",
    "evaluate": "grader_failed",
}
STUCK = {
    "open_environment": "sandbox_never_opened",
    "evaluate_environment": "sandbox_never_opened",
    "start_harness": "agent_stuck",
    "run_harness": "agent_stuck",
    "run_task": "agent_stuck",
    "evaluate": "grader_stuck",
}
"""What it means to hang in a phase."""


def of_issue(code: str, phase: str, message: str) -> str:
    """Return the cause that an issue names, from its code and phase first and from its message within those."""
    if (found := _first(_ANYWHERE, message)) is not None:
        return found
    if code.startswith("model_"):
        return "model_timeout" if code == "model_timeout" else _first(_MODEL, message) or "model_failed"
    named = "cleanup_failed" if phase == "cleanup" else _BY_CODE.get(code) or _BY_PHASE.get(phase, "unknown")
    if named == "harness_failed" and _MODEL_API.search(message):
        return _first(_MODEL, message) or named
    if _TIMEOUT.search(message):
        return {"harness_failed": "attempt_timed_out", "grader_failed": "grader_timeout"}.get(named, named)
    return named


def of_stage(stage: str, message: str) -> str | None:
    """The cause that an error in an execution phase names (`open_environment`, `evaluate`, …); None for no idea."""
    return _first(_ANYWHERE, message) or _BY_STAGE.get(stage) or of_text(message)


def of_text(message: str) -> str | None:
    """Return the cause that a text without any context names (an error of the run, a line of its log), or None."""
    found = _first(_ANYWHERE, message) or _first(_UNPLACED, message)
    if found is None and (_MODEL_API.search(message) or "HTTP" in message):
        found = _first(_MODEL, message)
    return found


def of_pattern(pattern: str) -> str | None:
    """Return what a retry pattern that matched an error suggests: `429`, `400|bad request`."""
    return _first(_MODEL, f"HTTP {pattern}")


def _first(table: tuple[tuple[str, re.Pattern[str]], ...], text: str) -> str | None:
    return next((code for code, pattern in table if pattern.search(text)), None)
