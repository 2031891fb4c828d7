#!/usr/bin/env python3
"""Seeded streams for benchmarks: one run of any size, or a history of many runs.

    python -m benchmarks.generate data/run.jsonl --events 1000000 --live
    python -m benchmarks.generate data/history --runs 1000 --events 10000 --killed 0.05

A small simulation in which tasks wait for a free slot, all attempts of a task run side by side, and a heap orders what
they do by simulated time; so events of many tasks interleave as in a recorded run. Attempts plan, open an environment,
work with or without a harness, collect artifacts, are scored; some are retried and some fail. Lines are spelled as
AgentCompass 1.0.1 spells them (`json.dumps` with its default separators, UTF-8 unescaped), or compactly.
The same seed and options give the same bytes, on every machine and in every process.
"""

import argparse
import heapq
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from time import gmtime, perf_counter, strftime
from typing import Any

import xxhash

Event = dict[str, Any]
Seal = Callable[[bytes], bytes]
"""Turns one line without its newline into the line to write, likewise without; called once for each line in order."""
Step = tuple[float, str, str | None, str | None, Event]
"""What a script does next: seconds since its last step, event, phase, status, payload."""

BENCHMARKS = ("repo_repair", "shell_quest", "web_research", "tool_desk", "math_proofs")
MODELS = ("toy-7b", "toy-13b", "toy-70b", "toy-moe", "toy-mini")
SUBJECTS = ("kestrel-web", "lattice.core", "数据清洗", "tidepool/api", "quince orm", "Übersetzer", "nimbus-cli")
ERRORS = (
    'Traceback (most recent call last):\n  File "/opt/agent/sandbox.py", line 88, in open\n    raise SandboxGone\n'
    "SandboxGone: container left with code 137",
    '429 Too Many Requests from "https://models.example/v1" {"event": "task_finished", "status": "failed"}',
    "TimeoutError: 运行超时 after 5400.0 s",
)
FIRST_START = 1_750_000_000.0  # in June 2025; all 100,000 starts lie in the past, so no stream looks alive
SECONDS_BETWEEN_RUNS = 300.0
MAX_RETRIES = 2
NOTHING: Event = {}
# Measured over many seeds; they only choose how many tasks make up about as many events as asked for.
EVENTS_PER_ATTEMPT = 15.56
EVENTS_PER_TASK = 4
EVENTS_PER_RUN = 5


@dataclass(frozen=True)
class Run:
    """What names a run and stands on each of its lines."""

    run_id: str
    benchmark: str
    model: str
    orchestration_id: str
    request_index: int = 0
    harness: str = "shell_agent"
    environment: str = "docker"
    started: float = FIRST_START

    @property
    def folder(self) -> str:
        """Where AgentCompass puts it below its results: `<model>_<benchmark>_<harness>/<run id>`."""
        return f"{self.model}_{self.benchmark}_{self.harness}/{self.run_id}"


@dataclass
class _Task:
    index: int
    name: str
    category: str | None
    open_attempts: int
    severities: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Written:
    """What was written: number of events and bytes, and the XXH3-64 of the bytes (of all streams, in order)."""

    events: int
    bytes: int
    xxh3: str


def run_of(seed: int, index: int = 0) -> Run:
    """The run that `seed` names; `index` counts the requests of one launch, which share an orchestration id."""
    orchestration = f"{Random(seed - index).getrandbits(128):032x}"
    benchmark, model = BENCHMARKS[seed % len(BENCHMARKS)], MODELS[seed // len(BENCHMARKS) % len(MODELS)]
    started = FIRST_START + seed % 100_000 * SECONDS_BETWEEN_RUNS
    run_id = strftime("%Y%m%d_%H%M%S", gmtime(started))
    return Run(run_id, benchmark, model, orchestration, index, started=started)


def _plan(run: Run) -> Event:
    """A resolved plan, with every member that AgentCompass 1.0.1 writes."""

    def policy(mode: str, *allowed: str) -> Event:
        return {"network_mode": mode, "allowed_hosts": list(allowed), "denied_hosts": []}

    def environment() -> Event:
        resources = {"cpus": 4, "memory_mb": 16384, "disk_mb": 65536}
        return {
            "id": run.environment,
            "baseline_network_policy": policy("public"),
            "resources": resources,
            "setup": {},
        }

    return {
        "environment": environment(),
        "evaluation_environment": environment(),
        "evaluation_environment_mode": "fresh",
        "run_network_policy": policy("allowlist", "models.example"),
        "evaluation_network_policy": policy("none"),
        "applied_recipes": [f"{run.benchmark}_images", "checked_images"],
        "run_timeout_seconds": 5400.0,
        "evaluation_timeout_seconds": 1800.0,
        "artifact_limits": {"max_mb": 16384, "max_files": 100000, "timeout_seconds": 600.0},
        "artifact_collection_supported": True,
        "collect_artifacts": True,
        "save_artifacts": True,
        "runresult_collect_timeout_seconds": 60.0,
        "run_timer_compensation_seconds": 120.0,
        "artifact_collect_timeout_seconds": 60.0,
    }


class _Dice:
    """Waiting times and chances. Built on `random()` alone, whose sequence Python promises to keep."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random

    def wait(self, mean: float) -> float:
        return -mean * math.log(1.0 - self.random())

    def below(self, count: int) -> int:
        return int(self.random() * count)


def _retry(dice: _Dice, retry: int, stage: str, scope: str, detail: str) -> Iterator[Step]:
    delay = dice.wait(5.0)
    payload = {
        "retry": retry,
        "max_retries": MAX_RETRIES,
        "retry_delay_seconds": delay,
        "stage": stage,
        "scope": scope,
        "matched_pattern": "fatal" if stage == "open_environment" else "429|Timeout",
        "retry_detail": f"{detail}.retry{retry}.{stage}.json",
    }
    yield 0.02, "attempt_retry", None, None, payload
    yield 0.003, "phase_changed", "retry_wait", None, {"retry": retry, "retry_delay_seconds": delay}
    yield delay, "phase_changed", "open_environment" if scope == "attempt" else "evaluate_environment", None, NOTHING


def _work(dice: _Dice, with_harness: bool) -> Iterator[Step]:
    """From an open environment to a saved checkpoint."""
    yield dice.wait(12.0), "phase_changed", "prepare_task", None, NOTHING
    if with_harness:
        yield dice.wait(3.0), "phase_changed", "start_harness", None, NOTHING
        yield dice.wait(6.0), "phase_changed", "run_harness", None, NOTHING
        yield dice.wait(240.0), "phase_changed", "collect_harness_result", None, NOTHING
    else:
        yield dice.wait(3.0), "phase_changed", "run_task", None, NOTHING
    declared = {"timeout_seconds": 60.0, "command_count": 2, "source": "declared_commands"}
    yield dice.wait(1.0), "phase_changed", "collect_artifacts", None, declared
    files, size = 1 + dice.below(40), dice.below(5_000_000)
    for done in (0, 1):
        progress = {"operation": "download", "files": done * files, "bytes": done * size, "total_files": files}
        yield dice.wait(2.0), "phase_changed", "download_artifacts", None, progress
    yield 0.3, "phase_changed", "save_evaluation_checkpoint", None, NOTHING
    yield 0.1, "phase_changed", "evaluate_environment", None, NOTHING


def _attempt(dice: _Dice, task: _Task, plan: Event, detail: str) -> Iterator[Step]:
    """One attempt with its retries; notes the worst that happened in the task."""
    with_harness = dice.random() > 0.1
    retry = 0
    yield 0.0, "attempt_started", None, None, NOTHING
    yield 0.01, "phase_changed", "plan", None, NOTHING
    yield 0.02, "execution_plan_resolved", "plan", None, plan
    yield 0.02, "phase_changed", "open_environment", None, NOTHING
    while retry < MAX_RETRIES and dice.random() < 0.04:
        retry += 1
        failure = {"operation": "create", "environment": "docker", "error": ERRORS[dice.below(len(ERRORS))]}
        yield dice.wait(8.0), "phase_changed", "open_environment", "error", failure
        yield from _retry(dice, retry, "open_environment", "attempt", detail)
    yield from _work(dice, with_harness)
    if retry < MAX_RETRIES and dice.random() < 0.03:
        retry += 1
        yield from _retry(dice, retry, "attempt", "attempt", detail)
        yield from _work(dice, with_harness)
    yield dice.wait(10.0), "phase_changed", "evaluate", None, NOTHING
    if retry < MAX_RETRIES and dice.random() < 0.02:
        retry += 1
        yield from _retry(dice, retry, "evaluate", "evaluate", detail)
        yield dice.wait(10.0), "phase_changed", "evaluate", None, NOTHING
    luck = dice.random()
    task.severities.add("fatal" if luck < 0.01 else "error" if luck < 0.06 else "warning" if luck < 0.08 else "")
    yield dice.wait(20.0), "attempt_finished", None, "failed" if luck < 0.01 else "completed", NOTHING


def _ending(dice: _Dice, task: _Task, position: Event) -> Iterator[Step]:
    """What a task does when its last attempt is through."""
    severity = next(level for level in ("fatal", "error", "warning", "") if level in task.severities)
    status = "failed" if severity == "fatal" else "skipped" if not severity and dice.random() < 0.005 else "completed"
    yield 0.02, "phase_changed", "save_partial", None, NOTHING
    yield 0.03, "partial_saved", None, None, NOTHING
    yield 0.001, "task_finished", None, status, {**position, "severity": severity}


class _Simulation:
    """The moving parts of one run: `events()` may be read once."""

    def __init__(self, run: Run, seed: int, tasks: int, reused: int, concurrency: int, attempts: int) -> None:
        self.run, self.total, self.reused, self.attempts = run, tasks, reused, attempts
        self.dice = _Dice(seed)
        self.plan = _plan(run)
        self.waiting = deque(range(reused, tasks))
        self.concurrency = concurrency
        self.heap: list[tuple[float, int, Step, Iterator[Step], _Task, int | None]] = []
        self.pushed = 0
        self.key = f"{run.orchestration_id}/{run.request_index}"

    def _event(self, now: float, step: Step, task: _Task | None = None, attempt: int | None = None) -> Event:
        return {
            "run_id": self.run.run_id,
            "event": step[1],
            "timestamp": now,
            "task_id": task.name if task else None,
            "category": task.category if task else None,
            "attempt": attempt,
            "phase": step[2],
            "status": step[3],
            "payload": step[4],
            "orchestration_id": self.run.orchestration_id,
            "request_key": self.key,
            "request_name": "run",
            "request_index": self.run.request_index,
        }

    def _push(self, now: float, script: Iterator[Step], task: _Task, attempt: int | None) -> None:
        step = next(script, None)
        if step is not None:
            self.pushed += 1
            heapq.heappush(self.heap, (now + step[0], self.pushed, step, script, task, attempt))

    def _start_task(self, now: float) -> Event:
        """The first waiting task takes a slot, and its attempts start one after the other within a moment."""
        index = self.waiting.popleft()
        subject = SUBJECTS[self.dice.below(len(SUBJECTS))]
        category = subject if self.dice.random() > 0.05 else None
        task = _Task(index, f"{subject}-{10_000 + index}", category, self.attempts)
        folder = f"/data/evals/{self.run.folder}/details/running/task-{index}"
        for number in range(1, self.attempts + 1):
            detail = f"{folder}/attempt-{number}/retries/task-{index}.attempt{number}"
            start = now + self.dice.wait(0.3) * number
            self._push(start, _attempt(self.dice, task, self.plan, detail), task, number)
        started: Step = (0.0, "task_started", None, None, {"index": index, "total": self.total})
        return self._event(now, started, task)

    def _opening(self) -> Iterator[Event]:
        run, now = self.run, self.run.started
        ids = {"benchmark": run.benchmark, "harness": run.harness, "environment": run.environment, "model": run.model}
        yield self._event(now, (0.0, "run_started", None, None, ids))
        yield self._event(now + 0.5, (0.0, "tasks_loaded", None, None, {"total_tasks": self.total}))
        severities = {"error": self.reused // 10} if self.reused >= 10 else {}
        reuse = {
            "reused_tasks": self.reused,
            "tasks_to_run": self.total - self.reused,
            "reused_severity_counts": severities,
        }
        yield self._event(now + 1.0, (0.0, "reuse_loaded", None, None, reuse))

    def events(self) -> Iterator[Event]:
        """All events of the run, in order of time."""
        yield from self._opening()
        now = self.run.started + 1.0
        for _ in range(min(self.concurrency, len(self.waiting))):
            now += 0.0003
            yield self._start_task(now)
        while self.heap:
            now, _, step, script, task, attempt = self.heap[0]
            yield self._event(now, step, task, attempt)
            following = next(script, None)
            if following is not None:
                self.pushed += 1
                entry = (now + following[0], self.pushed, following, script, task, attempt)
                heapq.heapreplace(self.heap, entry)
                continue
            heapq.heappop(self.heap)
            yield from self._after(now, task, attempt)
        yield self._event(now + 1.0, (0.0, "summary_started", None, None, NOTHING))
        yield self._event(now + 3.0, (0.0, "run_finished", None, "completed", NOTHING))

    def _after(self, now: float, task: _Task, attempt: int | None) -> Iterator[Event]:
        """A script has ended: the task's last attempt brings its ending, and that frees the slot."""
        if attempt is None:
            if self.waiting:
                yield self._start_task(now + 0.0005)
            return
        task.open_attempts -= 1
        if not task.open_attempts:
            position = {"index": task.index, "total": self.total}
            self._push(now, _ending(self.dice, task, position), task, None)


def stream(
    seed: int,
    events: int,
    *,
    concurrency: int = 100,
    attempts: int = 3,
    live: bool = False,
    reuse: float = 0.0,
    run: Run | None = None,
) -> Iterator[Event]:
    """The events of one simulated run, as dicts in AgentCompass's member order.

    A finished run has about `events` events (whole tasks are simulated); a `live` one has exactly as many, no terminal
    event, and tasks under way. `reuse` is the share of tasks taken over from another run. Payloads may be shared
    between events: read them only.
    """
    if events < 1 or concurrency < 1 or attempts < 1 or not 0 <= reuse < 1:
        raise ValueError("events, concurrency and attempts start at 1, and reuse is a share below 1")
    fresh = max(1, round((events - EVENTS_PER_RUN) / (attempts * EVENTS_PER_ATTEMPT + EVENTS_PER_TASK)))
    if live:
        fresh = int(fresh * 1.2) + concurrency + 10
    reused = int(fresh * reuse / (1 - reuse))
    simulation = _Simulation(run or run_of(seed), seed, fresh + reused, reused, concurrency, attempts)
    return islice(simulation.events(), events) if live else simulation.events()


def lines(events: Iterable[Event], *, compact: bool = False, seal: Seal | None = None) -> Iterator[bytes]:
    """The events as lines with their newlines: in AgentCompass's spelling, or `compact`; then sealed where asked."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":") if compact else None).encode
    for event in events:
        line = encode(event).encode()
        yield (line if seal is None else seal(line)) + b"\n"


def write_stream(
    path: Path,
    seed: int,
    events: int,
    *,
    compact: bool = False,
    seal: Seal | None = None,
    cut: int | None = None,
    **options: Any,
) -> Written:
    """Write one stream to `path` (folders are made); `cut` keeps that many events, as a kill would.

    `options` go to `stream`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    count = size = 0
    digest = xxhash.xxh3_64()
    with path.open("wb", buffering=1 << 20) as file:
        for line in lines(islice(stream(seed, events, **options), cut), compact=compact, seal=seal):
            file.write(line)
            digest.update(line)
            count += 1
            size += len(line)
    return Written(count, size, digest.hexdigest())


def write_history(
    root: Path,
    runs: int,
    events_per_run: int,
    *,
    seed: int = 1,
    killed: float = 0.05,
    new_seal: Callable[[], Seal] | None = None,
    **options: Any,
) -> Written:
    """Write `runs` run directories below `root`, laid out as AgentCompass does, and return what they are together.

    Five runs in a row belong to one launch; a share of `killed` breaks off without a terminal event. `new_seal` makes
    the seal of one stream. `options` go to `write_stream` and `stream`; concurrency is 32 unless given.
    """
    dice = _Dice(seed)
    count = size = 0
    digest = xxhash.xxh3_64()
    for number in range(runs):
        cut = 1 + int(events_per_run * (0.2 + 0.7 * dice.random())) if dice.random() < killed else None
        run_seed = seed * 1_000_000 + number
        run = run_of(run_seed, number % 5)
        seal = new_seal() if new_seal else None
        path = root / run.folder / "progress.jsonl"
        settings = {"concurrency": 32, "run": run, **options}
        written = write_stream(path, run_seed, events_per_run, cut=cut, seal=seal, **settings)
        count, size = count + written.events, size + written.bytes
        digest.update(written.xxh3.encode())
    return Written(count, size, digest.hexdigest())


def main(arguments: list[str] | None = None) -> None:
    """The command line of this module; prints what was written as one JSON line."""
    parser = argparse.ArgumentParser(description="Write seeded streams for benchmarks.")
    parser.add_argument("path", type=Path, help="the stream to write, or with --runs the folder of the history")
    parser.add_argument("--events", type=int, required=True, help="events of the stream, or of each run")
    parser.add_argument("--runs", type=int, help="write a history of so many runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--concurrency", type=int, help="tasks at a time (100; in a history 32)")
    parser.add_argument("--attempts", type=int, default=3, help="attempts of each task (3)")
    parser.add_argument("--reuse", type=float, default=0.0, help="share of tasks taken over from another run")
    parser.add_argument("--compact", action="store_true", help="no spaces between JSON tokens")
    parser.add_argument("--live", action="store_true", help="exactly --events events, and no terminal one")
    parser.add_argument("--killed", type=float, default=0.05, help="share of a history's runs that broke off")
    given = parser.parse_args(arguments)
    options: dict[str, Any] = {name: getattr(given, name) for name in ("attempts", "reuse", "compact", "live")}
    if given.concurrency is not None:
        options["concurrency"] = given.concurrency
    before = perf_counter()
    if given.runs is None:
        written = write_stream(given.path, given.seed, given.events, **options)
    else:
        written = write_history(given.path, given.runs, given.events, seed=given.seed, killed=given.killed, **options)
    print(json.dumps({"path": str(given.path), **asdict(written), "seconds": round(perf_counter() - before, 2)}))


if __name__ == "__main__":
    main()
