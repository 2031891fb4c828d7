"""How fast can a run be recorded? Ours beside bare writing, AgentCompass's own reporter, and a library on SQLite.

    python -m benchmarks.bench_append [--events 300000] [--rounds 3] [--folder DIR]

100 tasks are active all the time, each going through eleven events. The yardstick is the least that one event can cost:
encode it, one `write(2)`. Every job of ours ends with a check that its stream proves itself. Peers join in where they
are installed: `eventsourcing` in this interpreter, AgentCompass 1.0.1 where COMPASS_ES_AGENTCOMPASS_PYTHON names one.
`--folder` chooses the disk; the default is the system's folder for temporary files.
"""

import argparse
import asyncio
import gc
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .measure import report, run_job, side_by_side

ACTIVE = 100
PHASES = ("plan", "open_environment", "prepare_task", "run_harness", "evaluate", "save_partial")
SECONDS = 3.0
"""How long the jobs run that are bound by the disk."""

REPOSITORY = Path(__file__).parent.parent
PLAN = {
    "environment": {"id": "e", "network_policy": {"network_mode": "public", "allowed_hosts": []}},
    "evaluation_environment": None,
    "applied_recipes": [],
    "run_network_policy": {"network_mode": "public", "allowed_hosts": []},
    "verifier_network_policy": {"network_mode": "public", "allowed_hosts": []},
}


def story(count: int) -> list[Any]:
    """`count` events of tasks that run in hundreds side by side."""
    from eventstore.format import events as e

    def of_task(number: int) -> Iterator[Any]:
        task: dict[str, Any] = {"task_id": f"task-{number:06}", "category": "easy"}
        place = {"index": number, "total": count // 11}
        yield e.TaskStarted(**task, payload=e.TaskStartedPayload(**place))
        yield e.AttemptStarted(**task, attempt=1)
        for phase in PHASES:
            yield e.PhaseChanged(**task, attempt=1, phase=phase)
        yield e.AttemptFinished(**task, attempt=1, status="completed")
        yield e.PartialSaved(**task)
        yield e.TaskFinished(**task, status="completed", payload=e.TaskFinishedPayload(**place, severity=""))

    built: list[Any] = []
    first = 0
    while len(built) < count:
        rows = [list(of_task(number)) for number in range(first, first + ACTIVE)]
        built.extend(row[step] for step in range(11) for row in rows)
        first += ACTIVE
    gc.collect()
    gc.freeze()  # the benchmark's own hundred thousand objects are not what is measured
    return built[:count]


def checked(folder: Path, least: int) -> int:
    """The size of the stream in `folder`, after a scan that must find `least` events and nothing wrong."""
    from eventstore.stream.scan import scan

    found = scan(folder)
    for _ in found.blocks():
        pass
    assert not found.verdicts and found.records >= least, (found.records, least, found.verdicts)
    return found.bytes


# -- jobs bound by the interpreter: the same events, appended one after the other


def bare(folder: Path, count: int, *, seals: bool = False, syncs: bool = False) -> int:
    """Encode and write, with the proofs or without them, with a background fsync or without."""
    import msgspec

    from eventstore.format.seal import NO_PREDECESSOR, seal

    events, encode = story(count), msgspec.json.Encoder().encode
    fd = os.open(folder / "stream", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    stop = threading.Event()

    def sync() -> None:
        while not stop.wait(0.05):
            os.fsync(fd)

    thread = threading.Thread(target=sync)
    if syncs:
        thread.start()
    prev, began = NO_PREDECESSOR, time.perf_counter()
    if seals:
        for seq, event in enumerate(events):
            line, prev = seal(encode(event), seq, prev)
            os.write(fd, line)
    else:
        for event in events:
            os.write(fd, encode(event) + b"\n")
    seconds = time.perf_counter() - began
    stop.set()
    if syncs:
        thread.join()
    report(seconds=seconds, events=count, bytes=os.fstat(fd).st_size)
    return 0


def log(folder: Path, count: int, durability: Any) -> None:
    """The log alone: proofs, no snapshots."""
    from eventstore.stream.log import EventLog

    events = story(count)
    with EventLog.open(folder, run_id="r", durability=durability) as opened:
        append, began = opened.append, time.perf_counter()
        for event in events:
            append(event)
        seconds = time.perf_counter() - began
    report(seconds=seconds, events=count, bytes=checked(folder, count))


def create(folder: Path, durability: Any) -> Any:
    from eventstore.recording.recorder import RunRecorder

    request = {name: {"id": name} for name in ("model", "benchmark", "harness", "environment")}
    return RunRecorder.create(folder / "run", request=request, durability=durability)


def recorder(folder: Path, count: int, durability: Any) -> None:
    """Everything: proofs, masking, live snapshots."""
    events = story(count)
    with create(folder, durability) as run:
        append, began = run.append, time.perf_counter()
        for event in events:
            append(event)
        seconds = time.perf_counter() - began
        run.finish("completed")
    report(seconds=seconds, events=count, bytes=checked(folder / "run", count))


def latency(folder: Path, count: int, durability: Any) -> None:
    """As `recorder`, with the time of each call."""
    events, clock = story(count), time.perf_counter_ns
    times = []
    with create(folder, durability) as run:
        append, began = run.append, time.perf_counter()
        for event in events:
            before = clock()
            append(event)
            times.append(clock() - before)
        seconds = time.perf_counter() - began
        run.finish("completed")
    times.sort()
    tell_latency(f"recorder, {durability}", [value / 1000 for value in times])
    report(seconds=seconds, events=count, bytes=checked(folder / "run", count))


def tell_latency(name: str, sorted_microseconds: list[float]) -> None:
    at = {
        share: sorted_microseconds[min(len(sorted_microseconds) - 1, int(len(sorted_microseconds) * share))]
        for share in (0.5, 0.99, 0.999)
    }
    print(
        f"LATENCY {name}: p50 {at[0.5]:.1f} us, p99 {at[0.99]:.1f} us, p99.9 {at[0.999]:.1f} us, "
        f"max {sorted_microseconds[-1]:.0f} us",
        flush=True,
    )


# -- jobs bound by the disk: as many events as it acknowledges in a few seconds


def raw_fsync(folder: Path, count: int) -> None:
    """One caller: write a line, fsync."""
    fd, line, done = os.open(folder / "stream", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), b"x" * 399 + b"\n", 0
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        os.write(fd, line)
        os.fsync(fd)
        done += 1
    report(seconds=time.perf_counter() - began, events=done, bytes=400 * done)


def always_threads(folder: Path, callers: int) -> None:
    """`always` from threads."""
    from eventstore.stream.log import EventLog

    events, done = story(1100), [0] * callers
    with EventLog.open(folder, run_id="r", durability="always") as opened:
        began = time.perf_counter()

        def work(caller: int) -> None:
            while time.perf_counter() - began < SECONDS:
                opened.append(events[(caller + done[caller]) % len(events)])
                done[caller] += 1

        threads = [threading.Thread(target=work, args=(caller,)) for caller in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    report(seconds=seconds, events=sum(done), bytes=checked(folder, sum(done)))


def always_tasks(folder: Path, callers: int) -> None:
    """`always` from asyncio tasks."""
    from eventstore.stream.log import EventLog

    events, done = story(1100), [0] * callers

    async def main(opened: EventLog) -> float:
        began = time.perf_counter()

        async def work(caller: int) -> None:
            while time.perf_counter() - began < SECONDS:
                await opened.append_async(events[(caller + done[caller]) % len(events)])
                done[caller] += 1

        await asyncio.gather(*map(work, range(callers)))
        return time.perf_counter() - began

    with EventLog.open(folder, run_id="r", durability="always") as opened:
        seconds = asyncio.run(main(opened))
    report(seconds=seconds, events=sum(done), bytes=checked(folder, sum(done)))


def on_sqlite(folder: Path, count: int) -> None:
    """The `eventsourcing` library, one stored event a call, on SQLite with its defaults."""
    from uuid import uuid4

    from eventsourcing.persistence import StoredEvent
    from eventsourcing.sqlite import SQLiteAggregateRecorder, SQLiteDatastore

    store = SQLiteAggregateRecorder(SQLiteDatastore(str(folder / "events.db")))
    store.create_table()
    origin, done, began = uuid4(), 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        event: Any = StoredEvent(origin, done, "phase_changed", b"x" * 350)
        store.insert_events([event])
        done += 1
    report(seconds=time.perf_counter() - began, events=done, bytes=350 * done)


# -- plans: what one more costs when there are many already


def plans(folder: Path, before: int) -> None:
    """Record plans as fast as a run with many attempts would, ten snapshots a second, and count the bytes written."""
    from eventstore.format.events import ExecutionPlanResolved
    from eventstore.recording import live_snapshots
    from eventstore.stream.filesystem import FileSystem

    written = 0

    class Counting(FileSystem):
        def replace(self, source: Any, target: Any) -> None:
            nonlocal written
            written += os.path.getsize(source) if os.fspath(target).endswith("run_info.json") else 0
            super().replace(source, target)

    from eventstore.recording.recorder import RunRecorder

    request = {name: {"id": name} for name in ("model", "benchmark", "harness", "environment")}
    run = RunRecorder.create(folder / "run", request=request, files=Counting())
    assert live_snapshots.INTERVAL_SECONDS == 0.1
    events = [ExecutionPlanResolved(task_id=f"t{n}", attempt=1, phase="plan", payload=PLAN) for n in range(before + 50)]
    for event in events[:before]:
        run.append(event)
    began = time.perf_counter()
    for event in events[before:]:
        run.append(event)
    seconds = time.perf_counter() - began
    run.finish("completed")
    run.close()
    print(f"PLANS {before + 50} attempts: {written / (before + 50):.0f} bytes of run_info.json written per attempt")
    report(seconds=seconds, events=50, bytes=written)


# -- AgentCompass, run by an interpreter that has it

AGENTCOMPASS = """
import json, sys, time
from pathlib import Path
from types import SimpleNamespace as N
from agentcompass.runtime.progress import JsonlProgressSink, ProgressReporter, SnapshotProgressSink
folder, count = Path(sys.argv[1]), int(sys.argv[2])
ids = {name: N(id=name) for name in ("benchmark", "harness", "environment", "model")}
sinks = [JsonlProgressSink(folder / "progress.jsonl"), SnapshotProgressSink(folder / "progress.json")]
reporter = ProgressReporter(run_id="r", request=N(**ids), sinks=sinks)
for n in range(100):
    reporter.emit("task_started", task_id=f"task-{n:06}", category="easy", payload={"index": n, "total": 100})
times, began = [], time.perf_counter()
for n in range(count):
    before = time.perf_counter_ns()
    reporter.emit("phase_changed", task_id=f"task-{n % 100:06}", category="easy", attempt=1, phase="run_harness")
    times.append((time.perf_counter_ns() - before) / 1000)
seconds = time.perf_counter() - began
times.sort()
print(f"LATENCY AgentCompass 1.0.1's reporter: p50 {times[count // 2]:.0f} us, p99 {times[int(count * .99)]:.0f} us")
size = (folder / "progress.jsonl").stat().st_size
print(json.dumps({"seconds": seconds, "events": count, "bytes": size, "digest": None}))
"""

AGENTCOMPASS_PLANS = """
import asyncio, json, sys, time
from pathlib import Path
from agentcompass.runtime.results import RunStore
folder, before = Path(sys.argv[1]), int(sys.argv[2])
plan = json.loads(sys.argv[3])
info = {"schema_version": "agentcompass.run_info.v3", "run_id": "r", "request": {},
        "resolved_execution_plans": {f"t{n}": {"attempts": {"1": plan}} for n in range(before)}}
(folder / "run_info.json").write_text(json.dumps(info))
async def main():
    store = RunStore(None)
    began = time.perf_counter()
    for n in range(5):
        await store.record_resolved_execution_plan(folder, f"x{n}", 1, plan)
    return time.perf_counter() - began
seconds = asyncio.run(main())
size = (folder / "run_info.json").stat().st_size
print(json.dumps({"seconds": seconds, "events": 5, "bytes": 5 * size, "digest": None}))
"""


JOBS: dict[str, Callable[[Path, int], Any]] = {
    "encode, write(2)": bare,
    "encode, write(2), background fsync": lambda folder, count: bare(folder, count, syncs=True),
    "encode, seal, write(2)": lambda folder, count: bare(folder, count, seals=True),
    "log, os": lambda folder, count: log(folder, count, "os"),
    "log, group": lambda folder, count: log(folder, count, "group"),
    "recorder, os": lambda folder, count: recorder(folder, count, "os"),
    "recorder, group": lambda folder, count: recorder(folder, count, "group"),
    "latency, os": lambda folder, count: latency(folder, count, "os"),
    "latency, group": lambda folder, count: latency(folder, count, "group"),
    "write, fsync": raw_fsync,
    "always, 1 caller": lambda folder, count: always_threads(folder, 1),
    "always, 100 threads": lambda folder, count: always_threads(folder, 100),
    "always, 100 tasks": lambda folder, count: always_tasks(folder, 100),
    "eventsourcing on SQLite": on_sqlite,
    "plans, after 50": lambda folder, count: plans(folder, 50),
    "plans, after 5000": lambda folder, count: plans(folder, 5000),
}
BOUND_BY_INTERPRETER = [name for name in JOBS if name.split(",")[0] in ("encode", "log", "recorder")]
BOUND_BY_DISK = ["write, fsync", "always, 1 caller", "always, 100 threads", "always, 100 tasks"]


def job(name: str, count: int, folder: Path) -> None:
    """Run one job in a folder of its own below `folder`."""
    own = Path(tempfile.mkdtemp(dir=folder))
    try:
        JOBS[name](own, count)
    finally:
        shutil.rmtree(own)


def command(name: str, options: argparse.Namespace) -> list[str]:
    return [
        sys.executable,
        "-m",
        "benchmarks.bench_append",
        "--job",
        name,
        "--events",
        str(options.events),
        "--folder",
        str(options.folder),
    ]


def told_by(argv: list[str], word: str) -> None:
    """Run a command and print what it tells, on lines that begin with `word`, beside its line of facts."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    told = [line for line in done.stdout.splitlines() if line.startswith(word)]
    print("\n".join(told) or f"failed: {done.stderr[-500:]}", flush=True)


def with_agentcompass(python: str, options: argparse.Namespace) -> None:
    """Its reporter's rate, its cost of a plan, and a run of 300 tasks with its sinks and with our reporter."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        told_by([python, "-c", AGENTCOMPASS, folder, "2000"], "LATENCY")
        result = run_job([python, "-c", AGENTCOMPASS, folder, "2000"])
        print(f"AgentCompass 1.0.1's reporter, 100 active tasks: {result.events / result.seconds:,.0f} events/s")
        for before in (50, 5000):
            result = run_job([python, "-c", AGENTCOMPASS_PLANS, folder, str(before), json.dumps(PLAN)])
            print(
                f"AgentCompass 1.0.1, one plan after {before}: {result.seconds / result.events * 1000:.1f} ms, "
                f"{result.bytes / result.events:,.0f} bytes written"
            )
    for number in range(2):
        for ours in (False, True):
            whole_run(python, ours, number, options)


def whole_run(python: str, ours: bool, number: int, options: argparse.Namespace) -> None:
    wanted = {"tasks": 300, "k": 2, "concurrency": 40, "reporter": ours}
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        argv = [python, str(REPOSITORY / "tests/agentcompass_toy.py"), f"{folder}/results", "r", json.dumps(wanted)]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, env=environment, check=False)
        if done.returncode:
            print(f"the run failed: {done.stderr[-500:]}")
            return
        told = json.loads(done.stdout.splitlines()[-1])
    print(
        f"300 tasks, k = 2, {'our reporter' if ours else 'its own sinks'} (round {number + 1}): "
        f"{told['seconds']:.2f} s; event loop late by p50 {told['stall_p50'] * 1000:.1f} ms, "
        f"p99 {told['stall_p99'] * 1000:.1f} ms, max {told['stall_max'] * 1000:.0f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--job", choices=list(JOBS), help="run this one job and report its facts")
    options = parser.parse_args()
    if options.job:
        job(options.job, options.events, options.folder)
        return
    print("Bound by the interpreter: the same events, one append each")
    side_by_side({name: command(name, options) for name in BOUND_BY_INTERPRETER}, options.rounds)
    for durability in ("os", "group"):
        told_by(command(f"latency, {durability}", options), "LATENCY")
    print("\nBound by the disk: each event is on stable storage when the call returns")
    peers = ["eventsourcing on SQLite"] if importlib.util.find_spec("eventsourcing") else []
    side_by_side({name: command(name, options) for name in BOUND_BY_DISK + peers}, options.rounds)
    print("\nOne attempt's plan, with few and with many before it")
    side_by_side({name: command(name, options) for name in ("plans, after 50", "plans, after 5000")}, options.rounds)
    for before in (50, 5000):
        told_by(command(f"plans, after {before}", options), "PLANS")
    python = os.environ.get("COMPASS_ES_AGENTCOMPASS_PYTHON")
    if python:
        print()
        with_agentcompass(python, options)


if __name__ == "__main__":
    main()
