"""Names of task and attempt directories, and the states that a task's directory stands in.

`details/<state>/<readable part>--<sha256 of the id>/attempt-<n>/`, as the specification ("Evaluation Checkpoints") and
AgentCompass 1.0.1 have it. Pure.
"""

import hashlib
import re
from collections.abc import Iterable

from eventstore.errors import UsageError

DETAILS_NAME = "details"
RUNNING, NORMAL, ERROR, FATAL = "running", "normal", "error", "fatal"
TASK_STATES = (RUNNING, NORMAL, ERROR, FATAL)
"""`running` holds unfinished tasks; a finished one stands under the highest severity of any of its attempts."""

TASK_SCHEMA = "agentcompass.task.v3"
OLDER_TASK_SCHEMA = "agentcompass.task.v2"
CHECKPOINT_SCHEMA = "agentcompass.attempt_checkpoint.v1"
RETRY_SCHEMA = "agentcompass.retry.v1"
TASK_FILE, RESULT_FILE, CHECKPOINT_FILE = "task.json", "result.json", "checkpoint.json"
ARTIFACTS_NAME, RETRIES_NAME = "artifacts", "retries"

READABLE_LIMIT = 80
_UNREADABLE = re.compile(r"[^A-Za-z0-9._=-]+")
_LEFTOVER_STARTS = (".tmp", ".reuse-", ".download-", ".publish-")
_ATTEMPT_NAME = re.compile(r"attempt-([1-9][0-9]{0,8})")


def task_directory_name(task_id: str) -> str:
    """Return the one directory name of a task id: 80 readable characters at most, two hyphens, its SHA-256.

    Raises UsageError for an id that can't be stored: empty, with white space around it, or no UTF-8.
    """
    check_task_id(task_id)
    readable = _UNREADABLE.sub("_", task_id).strip("._-")[:READABLE_LIMIT] or "task"
    return f"{readable}--{hashlib.sha256(task_id.encode()).hexdigest()}"


def check_task_id(task_id: object) -> None:
    """Raises UsageError, in words, unless `task_id` can name a task's results."""
    if not isinstance(task_id, str):
        raise UsageError(f"a task id must be a string, not {type(task_id).__name__}")
    if not task_id.strip():
        raise UsageError("a task id must not be empty")
    if task_id != task_id.strip():
        raise UsageError(f"task id {task_id[:80]!r} has white space around it")
    try:
        task_id.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"task id {task_id[:80]!r} is no UTF-8: character {error.start} is a lone surrogate") from None


def attempt_directory_name(attempt: int) -> str:
    """Return `attempt-<n>`. Raises UsageError unless `attempt` is an integer from 1."""
    if type(attempt) is not int or attempt < 1:
        raise UsageError(f"an attempt must be an integer from 1, not {attempt!r}")
    return f"attempt-{attempt}"


def attempt_number(directory_name: str) -> int | None:
    """Return the number in `attempt-<n>`, or None where the name is another."""
    found = _ATTEMPT_NAME.fullmatch(directory_name)
    return int(found[1]) if found else None


def is_leftover(name: str) -> bool:
    """Whether a name is that of a temporary file or folder which a crash left: `.tmp.…`, `.name.….tmp`, `.reuse-…`."""
    return name.startswith(_LEFTOVER_STARTS) or (name[:1] == "." and name.endswith(".tmp"))


def state_of(severities: Iterable[str]) -> str:
    """Return the state of a finished task from the severities of all issues of its attempts."""
    found = set(severities)
    return FATAL if FATAL in found else ERROR if ERROR in found else NORMAL
