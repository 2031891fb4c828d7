"""Runs that failed for a known reason: recorded runs with realistic edits, one function a reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tools.streams import sealed_lines

Json = dict[str, Any]
Copy = Callable[[str], Path]


def events_of(run: Path) -> list[Json]:
    """The events of a stream without damage."""
    return [json.loads(line) for line in (run / "progress.jsonl").read_bytes().splitlines()]


def write_events(run: Path, events: list[Json]) -> None:
    """Replace the stream."""
    (run / "progress.jsonl").write_bytes(b"".join(json.dumps(event).encode() + b"\n" for event in events))


def finish(run: Path, status: str, error: str | None, seconds_later: float = 1.0) -> Path:
    """End the run: `run_finished`, and the status in run_info.json."""
    events = [event for event in events_of(run) if event["event"] != "run_finished"]
    payload = {} if error is None else {"error": error}
    last = {"event": "run_finished", "status": status, "payload": payload, "attempt": None, "phase": None}
    last |= {"task_id": None, "category": None, "timestamp": events[-1]["timestamp"] + seconds_later}
    write_events(run, [*events, events[-1] | last])
    edit_info(run, status=status, error=error)
    return run


def edit_info(run: Path, **members: Any) -> None:
    """Set members of run_info.json; None removes one."""
    info = json.loads((run / "run_info.json").read_text()) | members
    kept = {name: value for name, value in info.items() if value is not None}
    (run / "run_info.json").write_text(json.dumps(kept, indent=2, sort_keys=True))


def edit_issues(run: Path, change: Callable[[Json], Json], only: str = "") -> None:
    """Change every issue in results and in diagnostics of retries, of all tasks or of one."""
    for path in (run / "details").rglob("*.json"):
        content = json.loads(path.read_text())
        if content.get("issues") and only in str(path):
            content["issues"] = [issue | change(issue) for issue in content["issues"]]
            path.write_text(json.dumps(content, indent=2))


def log(run: Path, *lines: str) -> None:
    """Append to run.log."""
    with open(run / "run.log", "a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def drop(run: Path, *names: str) -> Path:
    """Remove files and folders of a run."""
    for name in names:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return run


def _rewritten(copy: Copy, **members: str) -> Path:
    """The run whose model answered 429, with other issues."""
    run = copy("p_429")
    edit_issues(run, lambda issue: members)
    return run


# -- the model


def model_server_down(copy: Copy) -> Path:
    return _rewritten(copy, message="APIConnectionError: Connection error. [Errno 111] Connection refused")


def key_refused(copy: Copy) -> Path:
    return _rewritten(copy, message="HTTP 401: AuthenticationError: Error code: 401 - invalid api key")


def model_server_error(copy: Copy) -> Path:
    return _rewritten(copy, message="HTTP 503: InternalServerError: Error code: 503 - upstream overloaded")


def model_slow(copy: Copy) -> Path:
    return _rewritten(copy, code="model_timeout", severity="error", message="APITimeoutError: Request timed out.")


def quota_gone(copy: Copy) -> Path:
    return _rewritten(copy, message="HTTP 429: RateLimitError: insufficient_quota: check your plan and billing")


def prompts_too_long(copy: Copy) -> Path:
    run = copy("r_retry")
    words = "HTTP 400: BadRequestError: This model's maximum context length is 8192 tokens"
    edit_issues(run, lambda issue: {"message": words})
    return run


# -- sandbox, harness, grader, task


def sandbox_fails(copy: Copy) -> Path:
    words = "EnvironmentSetupError: sandbox creation failed: image pull: HTTP 429 toomanyrequests"
    return _rewritten(copy, phase="setup", code="environment_failed", message=words)


def sandbox_never_opens(copy: Copy) -> Path:
    """All tasks wait in open_environment until the request's limit ends the run."""
    run = copy("r_kill_mid")
    kept = [event for event in events_of(run)[:60] if event["phase"] in (None, "plan", "open_environment")]
    write_events(run, [event for event in kept if event["event"] not in ("attempt_finished", "task_finished")])
    return finish(drop(run, "details"), "timed_out", "orchestration deadline exceeded", 7200.0)


def sandbox_hangs_shortly(copy: Copy) -> Path:
    """A request with a short limit, all of it spent on opening the first environments."""
    run = sandbox_never_opens(copy)
    events = [event for event in events_of(run)[:-1] if event["event"] != "task_finished"]
    write_events(run, events)
    return finish(run, "timed_out", "orchestration deadline exceeded", 5.0)


def set_up_fails_while_opening(copy: Copy) -> Path:
    """The environment raises an error of its own, which AgentCompass files as a failed set-up."""
    run = _rewritten(copy, phase="setup", code="setup_failed", message="RuntimeError: image pull failed")
    late = ("prepare_task", "start_harness", "run_harness", "collect_harness_result")
    write_events(run, [event for event in events_of(run) if event["phase"] not in late])
    return run


def harness_crashes(copy: Copy) -> Path:
    return _rewritten(copy, code="harness_failed", message="JSONDecodeError: Expecting value: line 1 column 1 (char 0)")


def attempts_time_out(copy: Copy) -> Path:
    return _rewritten(copy, code="run_failed", severity="error", message="TimeoutError: agent exceeded 1800 s")


def grader_hangs(copy: Copy) -> Path:
    run = copy("p_grader")
    edit_issues(run, lambda issue: {"message": "TimeoutError: judge did not answer within 60 s"})
    return run


def artifacts_fail(copy: Copy) -> Path:
    return _rewritten(copy, phase="collect", code="artifact_transfer_failed", message="OSError: stream closed early")


def poisoned_task(copy: Copy) -> Path:
    """One task fails again and again, fatally, while all others are well."""
    run, task = copy("r_retry2"), "arith-004"
    events = events_of(run)
    for event in events:
        if event["event"] == "task_finished" and event["task_id"] == task:
            event["status"], event["payload"]["severity"] = "failed", "fatal"
    write_events(run, events)
    (run / "details/fatal").mkdir()
    folder = next((run / "details/normal").glob(f"{task}--*"))
    shutil.move(folder, run / "details/fatal" / folder.name)
    issue = {"severity": "fatal", "phase": "run", "code": "harness_failed", "message": "RuntimeError: bad fixture"}
    for path in (run / "details/fatal").glob("*/attempt-*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "run_error", "issues": [issue]}))
    return finish(run, "failed", "Final FATAL issues; results: results/r_retry2")


def task_raises(copy: Copy) -> Path:
    """The exception of one task, which no one caught, ends the run."""
    run = copy("r_surrogate")
    text = (run / "run.log").read_text()
    words = "KeyError: 'fixture arith-001 has no answer'"
    old = "UnicodeEncodeError: 'utf-8' codec can't encode characters in position 25-26: surrogates not allowed"
    (run / "run.log").write_text(text.replace(old, words))
    return finish(run, "failed", "'fixture arith-001 has no answer'")


def summary_fails(copy: Copy) -> Path:
    run = drop(copy("r_ok"), "params.json", "metrics.json")
    return finish(run, "failed", "'NoneType' object has no attribute 'keys'")


def nothing_selected(copy: Copy) -> Path:
    run = copy("r_ok")
    events = [event for event in events_of(run) if event["task_id"] is None]
    for event in events:
        if event["event"] == "tasks_loaded":
            event["payload"]["total_tasks"] = 0
    write_events(run, events)
    return drop(run, "details")


# -- machines and disks


def memory_gone(copy: Copy) -> Path:
    run = copy("r_kill_mid")
    log(
        run,
        "14:34:50 ERROR    runtime.runner   ✗ Attempt failed | task=arith-011 | attempt=1",
        "Traceback (most recent call last):",
        '  File "runner.py", line 1, in run',
        "MemoryError",
    )
    return run


def sandbox_killed_for_memory(copy: Copy) -> Path:
    return _rewritten(copy, code="environment_failed", message="RuntimeError: command exited with code 137 (OOM)")


def disk_full(copy: Copy) -> Path:
    run = copy("r_kill_mid")
    log(run, "14:34:50 WARNING  runtime.progress   Progress sink failed: [Errno 28] No space left on device")
    return run


def disk_full_and_finished(copy: Copy) -> Path:
    """The sink fails early; the run goes on to its end, of which the stream knows nothing."""
    run = copy("r_retry")
    write_events(run, events_of(run)[:100])
    log(run, "14:31:17 WARNING  runtime.progress   Progress sink failed: [Errno 28] No space left on device")
    return run


def records_stop(copy: Copy) -> Path:
    """The stream ends early, and no word says why; run_info.json has a late end."""
    run = copy("r_ok")
    write_events(run, events_of(run)[:30])
    edit_info(run, finished_at="2026-11-29T15:31:18+00:00")
    return run


def events_lost(copy: Copy) -> Path:
    """Our recorder could not write for a while, and said so as soon as it could again."""
    run = copy("r_ok")
    events = events_of(run)
    payload = {"count": 12, "first_timestamp": 1.0, "last_timestamp": 2.0, "reason": "[Errno 5] Input/output error"}
    lost = events[30] | {"event": "records_lost", "payload": payload, "task_id": None, "phase": None}
    write_events(run, [*events[:30], lost, *events[31:]])
    return run


def power_lost(copy: Copy) -> Path:
    run = copy("r_kill_mid")
    with open(run / "progress.jsonl", "ab") as stream:
        stream.write(b"\0" * 4096)
    return run


def line_damaged(copy: Copy) -> Path:
    run = copy("r_ok")
    lines = (run / "progress.jsonl").read_bytes().splitlines(keepends=True)
    lines[20] = b"\x00\x01garbage" + lines[20][40:]
    (run / "progress.jsonl").write_bytes(b"".join(lines))
    return run


def two_writers(copy: Copy) -> Path:
    """A second request of the same run id writes into the directory; both die."""
    run = copy("r_kill_mid")
    events = events_of(run)
    second = [event | {"request_key": "another/0", "orchestration_id": "another"} for event in events[:50]]
    write_events(run, [*events[:100], *second])
    return run


def stranger_appends(copy: Copy) -> Path:
    """A sealed stream, and lines of somebody who seals none."""
    run = copy("r_kill_mid")
    plain = [json.dumps(event).encode() for event in events_of(run)]
    sealed = sealed_lines(plain[:100], session=b'"writer":{"id":"w"},')
    (run / "progress.jsonl").write_bytes(b"".join(sealed) + b"".join(line + b"\n" for line in plain[100:110]))
    return run


# -- stops


def request_timed_out(copy: Copy) -> Path:
    return finish(copy("r_kill_mid"), "timed_out", "orchestration deadline exceeded")


def interrupted(copy: Copy) -> Path:
    return finish(copy("r_kill_mid"), "cancelled", "orchestration cancelled")


def interrupted_twice(copy: Copy) -> Path:
    """The second Ctrl-C ends the process at once: no terminal event, a traceback at the log's end."""
    run = copy("r_kill_mid")
    log(run, "Traceback (most recent call last):", '  File "main.py", line 9, in <module>', "KeyboardInterrupt")
    return run


def cancelled_for_another(copy: Copy) -> Path:
    return finish(copy("r_kill_mid"), "cancelled", "request small-hard: unknown benchmark 'toy_geometry'")


# -- where the records hold no evidence


def failed_without_a_word(copy: Copy) -> Path:
    return finish(drop(copy("p_429"), "details", "run.log"), "failed", None)


def fatal_issues_gone(copy: Copy) -> Path:
    return drop(copy("p_429"), "details")


def failed_with_an_odd_word(copy: Copy) -> Path:
    """An error text that names nothing, before any summary."""
    run = copy("r_ok")
    write_events(run, [event for event in events_of(run) if event["event"] != "summary_started"])
    return finish(run, "failed", "exit status 3")


def failed_before_events(copy: Copy) -> Path:
    run = drop(copy("p_load"), "progress.jsonl", "progress.json", "run.log")
    edit_info(run, error=None)
    return run


def errors_without_details(copy: Copy) -> Path:
    return drop(copy("r_evalerr"), "details")


PLANTED: dict[str, tuple[str, str, str]] = {
    "p_429": ("failed", "model_rate_limited", "429"),
    "p_grader": ("completed", "grader_failed", "judge verdict"),
    "p_clock": ("completed", "clock_step", "clock stepped back"),
    "p_load": ("failed", "tasks_not_loaded", "arith-v2.zip"),
    "r_kill_early": ("died", "process_died", "without a terminal event"),
    "r_kill_mid": ("died", "process_died", "without a terminal event"),
    "r_sigterm": ("died", "process_died", "SIGTERM"),
    "r_surrogate": ("failed", "unwritable_text", "surrogate"),
    "r_evalerr": ("completed", "grader_failed", "malformed verdict"),
    "r_evalerr_reanalysis": ("completed", "grader_failed", "malformed verdict"),
    "r_retry": ("completed", "model_refused_request", "bad request"),
    "r_resumed": ("completed", "model_refused_request", "bad request"),
    "model_server_down": ("failed", "model_unreachable", "Connection refused"),
    "key_refused": ("failed", "model_refused_key", "401"),
    "model_server_error": ("failed", "model_server_error", "503"),
    "model_slow": ("failed", "model_timeout", "did not answer in time"),
    "quota_gone": ("failed", "model_quota_used_up", "quota"),
    "prompts_too_long": ("completed", "context_too_long", "context"),
    "sandbox_fails": ("failed", "sandbox_failed", "sandbox"),
    "sandbox_never_opens": ("timed_out", "sandbox_never_opened", "open_environment"),
    "sandbox_hangs_shortly": ("timed_out", "sandbox_never_opened", "open_environment"),
    "set_up_fails_while_opening": ("failed", "sandbox_failed", "image pull"),
    "harness_crashes": ("failed", "harness_failed", "JSONDecodeError"),
    "attempts_time_out": ("failed", "attempt_timed_out", "1800 s"),
    "grader_hangs": ("completed", "grader_timeout", "judge"),
    "artifacts_fail": ("failed", "artifacts_lost", "artifacts"),
    "poisoned_task": ("failed", "poisoned_task", "arith-004"),
    "task_raises": ("failed", "poisoned_task", "arith-001"),
    "summary_fails": ("failed", "summary_failed", "summary"),
    "nothing_selected": ("completed", "no_tasks", "no task"),
    "memory_gone": ("died", "out_of_memory", "memory"),
    "sandbox_killed_for_memory": ("failed", "out_of_memory", "137"),
    "disk_full": ("died", "disk_full", "No space left"),
    "disk_full_and_finished": ("completed", "disk_full", "No space left"),
    "records_stop": ("completed", "records_stopped", "after the last record"),
    "events_lost": ("completed", "records_stopped", "12 events"),
    "power_lost": ("died", "machine_stopped", "NUL"),
    "line_damaged": ("completed", "stream_damaged", "corrupt_line"),
    "two_writers": ("died", "two_writers", "two writers"),
    "stranger_appends": ("died", "two_writers", "two writers"),
    "request_timed_out": ("timed_out", "deadline_exceeded", "time limit"),
    "interrupted": ("cancelled", "stopped_by_user", "cancelled"),
    "interrupted_twice": ("died", "stopped_by_user", "Ctrl-C"),
    "cancelled_for_another": ("cancelled", "cancelled_with_others", "toy_geometry"),
    "failed_without_a_word": ("failed", "unknown", "unknown"),
    "fatal_issues_gone": ("failed", "unknown", "unknown"),
    "failed_with_an_odd_word": ("failed", "unknown", "exit status 3"),
    "failed_before_events": ("failed", "unknown", "before its first event"),
    "errors_without_details": ("completed", "unknown", "not in this directory"),
}
"""Name of a recorded run, or of a function here → outcome, code of the first cause, words of its message."""


def plant(name: str, copy: Copy) -> Path:
    """The run directory of a planted case."""
    make = globals().get(name)
    return make(copy) if callable(make) else copy(name)
