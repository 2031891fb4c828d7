"""Every fold has a place for every event, and does with it what the place says."""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

import pytest
from msgspec import to_builtins

import projections
from eventstore.format import codec
from eventstore.format.events import ADMINISTRATIVE_EVENTS, KNOWN_EVENTS
from eventstore.format.records import Recorded
from projections import Base
from projections.fold import Places, place_events

ALL_ALIKE = {
    "projections.snapshots.replay": "hands every record to the folds of progress.json and run_info.json",
}
"""Folds that tell no event from another."""
ADDS = {"projections.snapshots.progress": "counts", "projections.timeline.board": "rows"}
"""Folds that hand every record to another one first, and the member with that one's state."""


def folds() -> list[ModuleType]:
    """Every module of projections that folds records."""
    found = [importlib.import_module(info.name) for info in pkgutil.walk_packages(projections.__path__, "projections.")]
    return [module for module in found if hasattr(module, "apply") and module.__name__ != "projections.fold"]


TOLD = [module for module in folds() if module.__name__ not in ALL_ALIKE]


def test_every_fold_gives_every_event_its_place() -> None:
    """A fold that is added says what it does with each event; one that is added to the events stops the import."""
    assert len(TOLD) >= 8 and {module.__name__ for module in folds()} >= ALL_ALIKE.keys()
    for module in TOLD:
        assert isinstance(module.EVENTS, Places), module.__name__
        assert module.EVENTS.takes | module.EVENTS.passes_over == KNOWN_EVENTS.keys(), module.__name__


@pytest.mark.parametrize(
    ("takes", "passes_over", "named"),
    [
        ({*KNOWN_EVENTS} - {"records_lost"}, set(), "records_lost"),
        ({*KNOWN_EVENTS}, {"run_started"}, "run_started"),
        ({*KNOWN_EVENTS, "task_lost"}, set(), "task_lost"),
    ],
)
def test_a_hole_in_the_places_is_named(takes: set[str], passes_over: set[str], named: str) -> None:
    """An event without a place, with two, and one that nobody knows."""
    with pytest.raises(LookupError, match=named):
        place_events(takes=takes, passes_over=passes_over)


def record(seq: int, name: str, at: float, **members: Any) -> Recorded:
    """One record as a stream has it."""
    line = codec.dump_compact({"run_id": "r", "event": name, "timestamp": at, "payload": {}} | members) + b"\n"
    return Recorded(seq=seq, event=codec.decode(line), line=line, line_number=seq + 1)


ABOUT: dict[str, Any] = {
    "task_id": "a",
    "category": "c",
    "attempt": 1,
    "phase": "analyze",
    "status": "failed",
    "payload": {
        "total_tasks": 3,
        "reused_tasks": 1,
        "tasks_to_run": 2,
        "severity": "error",
        "error": "e",
        "count": 1,
        "benchmark": "b2",
        "generated_at": "2026-01-01T00:00:00+00:00",
    },
}
BEFORE = [
    record(0, "run_started", 1.0, payload={"benchmark": "b"}),
    record(1, "tasks_loaded", 1.0, payload={"total_tasks": 2}),
    record(2, "task_started", 1.0, task_id="a", category="c"),
    record(3, "attempt_started", 1.0, task_id="a", category="c", attempt=1),
    record(4, "run_finished", 1.0, status="failed"),
]


def state_after(module: ModuleType, name: str, before: int) -> str:
    """What a fold's state is after some records and one of that name, as text."""
    state = module.initial(Base())
    for known in BEFORE[:before]:
        state = module.apply(state, known)
    state = module.apply(state, record(before, name, 1.0, **ABOUT))
    if module.__name__ == "projections.verify.lifecycle":
        counts = {code: count for code, count in state.notes.counts.items() if code != "unknown_event"}
        state.notes, state.last_line, state.unknown_events = counts, b"", set()
    if module.__name__ in ADDS:
        setattr(state, ADDS[module.__name__], None)
    return repr(to_builtins(state, enc_hook=repr))


@pytest.mark.parametrize("module", TOLD, ids=lambda module: module.__name__.removeprefix("projections."))
def test_an_event_that_is_passed_over_does_what_an_unknown_one_does(module: ModuleType) -> None:
    """And one that is taken does more, at one moment of a run at least."""
    for name in KNOWN_EVENTS:
        alike = [state_after(module, name, n) == state_after(module, "unheard_of", n) for n in (0, 2, 4, 5)]
        if name in module.EVENTS.takes:
            assert not all(alike), f"{name} is taken, and changes nothing"
        elif name not in ADMINISTRATIVE_EVENTS:  # these don't move the clock either
            assert all(alike), f"{name} is passed over, and changes something"
