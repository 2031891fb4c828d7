"""Streams of several sessions, and what they say by a plain oracle: every rule once, over the whole list, nothing kept.

The oracle knows nothing of folds, blocks or bytes: it walks a list of events, each with the writer of its session.
"""

import json
import random
from pathlib import Path
from typing import Any

from eventstore.format import codec
from eventstore.format.events import ENVELOPE
from eventstore.format.seal import NO_PREDECESSOR, seal

Json = dict[str, Any]
ADMINISTRATIVE = ("metric_artifacts_written", "stream_repaired", "records_lost")


def writer(process: int, *, owns: bool = True) -> Json:
    """The record of a writer's session; processes with one number are the same."""
    members = {"id": f"w{process}", "host": "h", "pid": process, "boot": "b", "opened_at": "2026-03-01T12:00:00+00:00"}
    return members | {"version": "0"} | ({"owns_run_info": True} if owns else {})


def event(name: str, at: float, task: str | None = None, **members: Any) -> Json:
    """One event's members."""
    return {"event": name, "timestamp": at, "task_id": task, **members}


Sessions = list[tuple[Json | None, list[Json]]]
"""Writers with their events; a writer of None writes lines without `log`, as AgentCompass does."""


def write_stream(run: Path, sessions: Sessions) -> Path:
    """Write the sessions as one stream below `run`, sealed as the library seals; returns its path."""
    run.mkdir(parents=True, exist_ok=True)
    lines, seq, prev = [], 0, NO_PREDECESSOR
    for who, events in sessions:
        for index, members in enumerate(events):
            line = codec.dump_compact(dict.fromkeys(ENVELOPE) | {"run_id": "r", "payload": {}} | members)
            if who is not None:
                first = b'"writer":' + codec.dump_compact(who) + b"," if index == 0 else b""
                line, prev = seal(line, seq, prev, first)
            lines.append(line if line.endswith(b"\n") else line + b"\n")
            seq += 1
    path = run / "progress.jsonl"
    path.write_bytes(b"".join(lines))
    return path


class Oracle:
    """What a list of sessions says: `pending`, `running`, `finished`, `stays`, `open_tasks`, `first` and `last`.

    `stays` has (task, attempt, phase, start, end, ended_by); `end` is None for one that goes on.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.total = self.pending = self.running = self.finished = 0
        self.stays: list[tuple[str, Any, str, float, float | None, str | None]] = []
        self.open_stays: dict[tuple[str, Any], tuple[str, float]] = {}
        self.open_tasks: list[str] = []
        self.first: float | None = None
        self.last: float | None = None
        self.gaps: list[float] = [0.0]
        workers: set[Any] = set()
        for who, events in sessions:
            begun = who is None or self._process(who) in workers
            for members in events:
                name, border = members["event"], False
                owns = who is not None and who.get("owns_run_info") is True
                told = name in ADMINISTRATIVE or "closed" in members.get("payload", {})
                if not begun:
                    later = name == "partial_saved" or (name == "run_finished" and not owns)
                    if not told and not later:
                        begun, border = True, owns
                        workers = {self._process(who)} if owns else workers | {self._process(who)}
                    told = told or later
                if border:
                    self._die()
                self._see(members, told=told)
                if not told:
                    if self.last is not None and not border:
                        self.gaps.append(members["timestamp"] - self.last)
                    self.first = members["timestamp"] if self.first is None else self.first
                    self.last = members["timestamp"]

    @staticmethod
    def _process(who: Json | None) -> tuple[Any, ...]:
        return () if who is None else (who["host"], who["boot"], who["pid"])

    def _die(self) -> None:
        self._end(list(self.open_stays), self.last, "died")
        self.pending, self.running = self.pending + self.running, 0
        self.open_tasks = []

    def _end(self, keys: list[tuple[str, Any]], at: float | None, by: str) -> None:
        for key in keys:
            phase, since = self.open_stays.pop(key)
            self.stays.append((*key, phase, since, at, by))

    def _see(self, members: Json, *, told: bool) -> None:
        name, task, at = members["event"], members["task_id"], members["timestamp"]
        key, phase = (task, members.get("attempt")), members.get("phase")
        own = [key] if key in self.open_stays else []
        match name:
            case "tasks_loaded":
                self.total = self.pending = members["payload"]["total_tasks"]
            case "task_started":
                self._end([k for k in self.open_stays if k[0] == task], at, name)
                self.pending, self.running = max(0, self.pending - 1), self.running + 1
                self.open_tasks.append(task)
            case "task_finished":
                self._end([k for k in self.open_stays if k[0] == task], at, name)
                self.running, self.finished = max(0, self.running - 1), self.finished + 1
                self.open_tasks.remove(task)
            case "phase_changed":
                if not own or self.open_stays[key][0] != phase:
                    self._end(own, at, name)
                    self.open_stays[key] = (phase, at)
            case "attempt_started" | "attempt_finished" | "attempt_retry":
                self._end(own, at, name)
            case "run_finished":
                self._end(list(self.open_stays), *((self.last, "died") if told else (at, name)))
                self.running, self.pending, self.open_tasks = 0, max(0, self.total - self.finished), []


def random_sessions(seed: int) -> Sessions:
    """A run of several sessions: processes die, others go on, some only repair or close; clocks step."""
    chance = random.Random(seed)
    tasks, now = [f"t{number}" for number in range(chance.randrange(1, 5))], 1000.0
    done: set[str] = set()
    sessions: Sessions = []
    process = 1
    for number in range(chance.randrange(1, 5)):
        kind = "work" if number == 0 else chance.choice(["work", "work", "again", "repair", "late"])
        process += kind != "again"
        now += chance.choice([1.0, 50.0, 100_000.0])
        if kind == "repair":
            names = chance.choices([*ADMINISTRATIVE, "partial_saved"], k=chance.randrange(1, 4))
            told = [event(name, now, "t0" if name == "partial_saved" else None) for name in names]
            sessions.append((writer(process, owns=chance.random() < 0.5), told))
            process += 1
            continue
        events: list[Json] = []
        if number == 0:
            events += [event("run_started", now), event("tasks_loaded", now, payload={"total_tasks": len(tasks)})]
        elif kind == "late":
            events.append(event(chance.choice(ADMINISTRATIVE), now))
        for task in [task for task in tasks if task not in done][: chance.randrange(1, 4)]:
            now = _work(chance, task, now, events, done)
        sessions.append((writer(process), events or [event("records_lost", now)]))
    ending = chance.choice(["", "run_finished", "closed"])
    if ending:
        payload = {"closed": {"life": "dead", "evidence": ["gone"]}} if ending == "closed" else {}
        end = event("run_finished", now + chance.choice([1.0, 1e5]), status="failed", payload=payload)
        same = ending == "run_finished" or chance.random() < 0.3
        sessions.append((writer(process if same else 99, owns=ending != "closed"), [end]))
    return sessions


def _work(chance: random.Random, task: str, now: float, events: list[Json], done: set[str]) -> float:
    """One task as far as it gets; returns the time after it."""
    events.append(event("task_started", now, task, payload={"index": 0, "total": 1}))
    events.append(event("attempt_started", now, task, attempt=1))
    for phase in chance.choices(["plan", "run_task", "evaluate"], k=chance.randrange(4)):
        now += chance.choice([0.5, 3.0, 3.0, -40.0])
        events.append(event("phase_changed", now, task, attempt=1, phase=phase))
        if chance.random() < 0.1:
            events.append(event("records_lost", now + chance.choice([0.0, 500.0])))
    if chance.random() < 0.5:
        now += 1.0
        events.append(event("attempt_finished", now, task, attempt=1, status="completed"))
        events.append(event("task_finished", now, task, status="completed", payload={"severity": ""}))
        done.add(task)
    return now


def dump(sessions: Sessions) -> str:
    """The sessions as text, for the message of a test that fails."""
    return "\n".join(json.dumps([who and who["id"], events]) for who, events in sessions)
