"""`resolved_execution_plans` against the events (specification, "resolved_execution_plans Structure").

The record is written before the event, so every event's plan must be there; a plan without an event is that of a reused
attempt, or of a run that died between both writes.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from eventstore.format.events import Json
from eventstore.format.values import as_object, short
from projections.snapshots import plans

from . import lifecycle
from .findings import Notes

FILE = "run_info.json"


class TaskPlans(Struct):
    """A task's entry with its plans unparsed: most attempts of a run plan the same, so each text is parsed once."""

    attempts: dict[str, Raw]


def check_plans(notes: Notes, recorded: Any, resolved: plans.State, watched: lifecycle.State, *, reuses: bool) -> None:
    """Recorded plans and those of the events, attempt by attempt. `recorded` is what run_info.json has, or None.

    Its entries are objects as parsed, or `TaskPlans`.
    """
    if recorded is not None and not isinstance(recorded, dict):
        notes.add("plan_shape", f"resolved_execution_plans is {short(recorded)}, no object", file=FILE)
    entries = as_object(recorded)
    said = plans.resolved(resolved)
    same = _same_tasks(entries, said, watched.attempts_limit)
    stored = _by_attempt(notes, {task: entry for task, entry in entries.items() if task not in same}, watched)
    for task_id, entry in said.items():
        for number, plan in entry["attempts"].items() if task_id not in same else ():
            found = stored.pop((task_id, number), None)
            if isinstance(found, Raw):
                found = parse_plan(found)
            if found != plan or found is None:
                _compare(notes, task_id, number, found, plan)
    for task_id, number in stored:
        if not reuses and watched.events:
            words = f"a plan of attempt {number} without an event, and nothing was reused"
            notes.add("plan_unexplained", words, file=FILE, task_id=task_id, attempt=_number(number))


def _same_tasks(entries: Json, said: Json, limit: int | None) -> set[str]:
    """Tasks whose unparsed plans are what the events say, and whose attempt numbers are sound: nearly all of them."""
    alike: dict[int, Raw] = {}  # equal payloads share one object, and most stored ones are the same text as well
    sound: set[str] = set()
    same = set()
    for task_id, entry in entries.items():
        plan_of: Json = said[task_id]["attempts"] if task_id in said else {}
        if not isinstance(entry, TaskPlans) or entry.attempts.keys() != plan_of.keys():
            continue
        for number, text in entry.attempts.items():
            if number not in sound:
                value = _number(number)
                if value is None or (limit is not None and value > limit):
                    break
                sound.add(number)
            plan = plan_of[number]
            if text != alike.get(id(plan)):
                if not _is_object(text) or parse_plan(text) != plan:
                    break
                alike[id(plan)] = text
        else:
            same.add(task_id)
    return same


def parse_plan(plan: Raw) -> Any:
    """Return the value of an unparsed plan; None where it can't be held."""
    try:
        return msgspec.json.decode(plan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _by_attempt(notes: Notes, recorded: Json, watched: lifecycle.State) -> dict[tuple[str, str], Any]:
    limit = watched.attempts_limit
    found: dict[tuple[str, str], Any] = {}
    for task_id, entry in recorded.items():
        attempts = entry.attempts if isinstance(entry, TaskPlans) else None
        if isinstance(entry, dict):
            attempts = entry.get("attempts")
        if not isinstance(attempts, dict):
            notes.add("plan_shape", "a task's entry has no attempts", file=FILE, task_id=task_id)
            continue
        for number, plan in attempts.items():
            value = _number(number)
            if value is None or not _is_object(plan):
                words = f"attempt {short(number)} is no number from 1 with a plan"
                notes.add("plan_shape", words, file=FILE, task_id=task_id)
            elif limit is not None and value > limit:
                words = f"attempt {value} of k = {limit}"
                notes.add("attempt_beyond_k", words, file=FILE, task_id=task_id, attempt=value)
            found[task_id, number] = plan
    return found


def _is_object(plan: Any) -> bool:
    return memoryview(plan)[:1].tobytes() == b"{" if isinstance(plan, Raw) else isinstance(plan, dict)


def _compare(notes: Notes, task_id: str, number: str, stored: Any, said: Json) -> None:
    about: Any = {"file": FILE, "task_id": task_id, "attempt": _number(number)}
    if stored is None:
        notes.add("plan_missing", "the plan of the event is not in run_info.json", **about)
    elif stored != said:
        path, theirs, ours = first_difference(stored, said)
        words = f"{path or 'the plan'} is {short(theirs)}, the event says {short(ours)}"
        notes.add("plan_differs", words, **about)


def first_difference(stored: Any, said: Any, path: str = "") -> tuple[str, Any, Any]:
    """Return where two values first differ: the dotted path, and what stands there in each (None for nothing)."""
    if isinstance(stored, dict) and isinstance(said, dict):
        for name in [*said, *stored]:
            if name not in stored or name not in said or stored[name] != said[name]:
                return first_difference(stored.get(name), said.get(name), f"{path}.{name}" if path else str(name))
    return path, stored, said


def _number(text: Any) -> int | None:
    """Return the attempt number that a key spells, or None."""
    plain = isinstance(text, str) and text.isascii() and text.isdigit() and text[0] != "0" and len(text) < 10
    return int(text) if plain else None
