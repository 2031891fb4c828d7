"""How fast is a stream folded into its snapshot? Ours, bare decoding, and peers, side by side in one run.

    python -m benchmarks.bench_replay [--events 1000000] [--rounds 5]

The first row is the yardstick: the same lines only decoded into a msgspec struct without fields. Every fold prints the
digest of the same answer (counters, status, phases of active tasks), so nothing can be optimised away. A sealed stream
is folded with every line's digest and predecessor checked. The tracker of AgentCompass joins in where
COMPASS_ES_AGENTCOMPASS_PYTHON names an interpreter that has it.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from .measure import report, side_by_side

BLOCK_BYTES = 128 * 1024
COUNTED = (
    "status",
    "total_tasks",
    "pending_tasks",
    "running_tasks",
    "finished_tasks",
    "completed_tasks",
    "failed_tasks",
    "error_tasks",
    "warning_tasks",
    "skipped_tasks",
    "attempts_started",
    "attempts_finished",
    "partials_saved",
    "current_phase_counts",
)


def digest_of(snapshot: dict[str, Any]) -> str:
    answer = {name: snapshot[name] for name in COUNTED}
    return sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()[:12]


def whole_lines(path: Path) -> Iterator[memoryview]:
    """Blocks that end at a newline, in one buffer."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        buffer = bytearray(BLOCK_BYTES)
        view, have = memoryview(buffer), 0
        while count := file.readinto(view[have:]):
            have += count
            end = buffer.rfind(b"\n", 0, have) + 1
            yield view[:end]
            have -= end
            view[:have] = view[end : end + have]


# -- jobs: each returns the snapshot, or a number of events where there is none


def bare_decoding(path: Path) -> int:
    import msgspec

    class Nothing(msgspec.Struct, gc=False):
        pass

    decode = msgspec.json.Decoder(Nothing).decode_lines
    return sum(len(decode(view)) for view in whole_lines(path))


def progress_fold(path: Path) -> dict[str, Any]:
    from eventstore.stream.scan import scan
    from projections import fold
    from projections.snapshots import progress

    return progress.snapshot(fold(progress, scan(path)))


def both_folds(path: Path) -> dict[str, Any]:
    from eventstore.stream.scan import scan
    from projections import fold
    from projections.snapshots import progress, replay

    return progress.snapshot(fold(replay, scan(path)).progress)


def two_processes(path: Path) -> dict[str, Any]:
    from eventstore.operations import parallel_replay
    from eventstore.stream.scan import scan
    from projections import Base
    from projections.snapshots import progress

    parallel_replay.MIN_BYTES = 0
    return progress.snapshot(parallel_replay.fold_stream(scan(path), Base()).progress)


def typed_events(path: Path) -> int:
    from eventstore.stream.scan import scan

    return sum(1 for _ in scan(path))


def tracker_over(loads: Callable[[str], Any]) -> Callable[[Path], dict[str, Any]]:
    """The plain way: parse each line whole, update counters and a dict of active tasks, in Python."""

    def run(path: Path) -> dict[str, Any]:
        counts: dict[str, Any] = dict.fromkeys(COUNTED, 0) | {"status": "created"}
        active: dict[str, str] = {}
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                _count(loads(line), counts, active)
        phases = list(active.values())
        return counts | {"current_phase_counts": {phase: phases.count(phase) for phase in phases}}

    return run


def _count(event: dict[str, Any], counts: dict[str, Any], active: dict[str, str]) -> None:
    name, payload = event["event"], event["payload"]
    if name == "phase_changed":
        active[event["task_id"]] = event["phase"]
    elif name in ("attempt_started", "attempt_finished"):
        counts[f"attempts_{name[8:]}"] += 1
    elif name == "partial_saved":
        counts["partials_saved"] += 1
    elif name == "task_started":
        counts["pending_tasks"] -= 1
        counts["running_tasks"] += 1
        active[event["task_id"]] = "running"
    elif name == "task_finished":
        counts["running_tasks"] -= 1
        counts["finished_tasks"] += 1
        outcome = event["status"] if event["status"] in ("failed", "skipped") else "completed"
        counts[f"{outcome}_tasks"] += 1
        if payload.get("severity") in ("error", "warning"):
            counts[f"{payload['severity']}_tasks"] += 1
        active.pop(event["task_id"], None)
    elif name == "tasks_loaded":
        counts["total_tasks"] = counts["pending_tasks"] = payload["total_tasks"]
    elif name == "reuse_loaded":
        counts["pending_tasks"] = payload["tasks_to_run"]
        counts["finished_tasks"] = counts["completed_tasks"] = payload["reused_tasks"]
    elif name == "run_started":
        counts["status"] = "running"


def duckdb_sql(path: Path) -> int:
    """DuckDB reads the JSON itself, on both cores, and counts by event: less than a fold, for scale."""
    import duckdb

    columns = "{event: 'VARCHAR', task_id: 'VARCHAR', phase: 'VARCHAR', status: 'VARCHAR', timestamp: 'DOUBLE'}"
    sql = f"SELECT event, count(*), max(timestamp) FROM read_ndjson(?, columns={columns}) GROUP BY event"
    return sum(row[1] for row in duckdb.connect().execute(sql, [str(path)]).fetchall())


def orjson_tracker(path: Path) -> dict[str, Any]:
    import orjson

    return tracker_over(orjson.loads)(path)


JOBS: dict[str, Callable[[Path], Any]] = {
    "bare decoding": bare_decoding,
    "progress.json, one process": progress_fold,
    "both snapshots, one process": both_folds,
    "both snapshots, two processes": two_processes,
    "typed events, one by one": typed_events,
    "duckdb: count by event": duckdb_sql,
    "orjson and a plain tracker": orjson_tracker,
    "json and a plain tracker": tracker_over(json.loads),
}
SEALED_JOBS = {
    f"sealed: {name}": JOBS[name]
    for name in ("bare decoding", "both snapshots, one process", "both snapshots, two processes")
}
_TRACKER = """
import json, sys, time
from types import SimpleNamespace
from agentcompass.runtime.progress import ProgressEvent, ProgressTracker
begin, count, tracker = time.perf_counter(), 0, None
for line in open(sys.argv[1], encoding="utf-8"):
    event = ProgressEvent(**json.loads(line))
    if tracker is None:
        part = lambda name: SimpleNamespace(id=event.payload.get(name))
        request = SimpleNamespace(**{n: part(n) for n in ("benchmark", "harness", "environment", "model")})
        tracker = ProgressTracker(run_id=event.run_id, request=request)
    snapshot = tracker.apply(event)
    count += 1
seconds = time.perf_counter() - begin
from benchmarks.bench_replay import digest_of
from benchmarks.measure import report
import os
report(seconds=seconds, events=count, bytes=os.path.getsize(sys.argv[1]), digest=digest_of(snapshot))
"""


def run_job(name: str, path: Path) -> None:
    """One job, its imports done before the clock starts."""
    for module in ("msgspec", "xxhash", "eventstore.operations.parallel_replay", "projections", "duckdb", "orjson"):
        if importlib.util.find_spec(module.partition(".")[0]):
            importlib.import_module(module)
    begin = time.perf_counter()
    answer = (JOBS | SEALED_JOBS)[name](path)
    seconds = time.perf_counter() - begin
    events = answer if isinstance(answer, int) else sum(1 for _ in path.open("rb"))
    digest = None if isinstance(answer, int) else digest_of(answer)
    report(seconds=seconds, events=events, bytes=path.stat().st_size, digest=digest)


def sealer() -> Callable[[bytes], bytes]:
    """Seals the lines of one stream, each after the one before."""
    from eventstore.format.seal import NO_PREDECESSOR, seal

    seq, prev = -1, NO_PREDECESSOR

    def sealed(line: bytes) -> bytes:
        nonlocal seq, prev
        seq += 1
        text, prev = seal(line, seq, prev)
        return text[:-1]

    return sealed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        return run_job(options.job[0], Path(options.job[1]))
    from .generate import write_stream

    with tempfile.TemporaryDirectory() as folder:
        plain, sealed = Path(folder) / "plain.jsonl", Path(folder) / "sealed.jsonl"
        write_stream(plain, 1, options.events, live=True)
        write_stream(sealed, 1, options.events, live=True, compact=True, seal=sealer())
        this = [sys.executable, "-m", "benchmarks.bench_replay", "--job"]
        jobs = {name: [*this, name, str(plain)] for name in JOBS if name[:6] != "orjson" or _has("orjson")}
        if peer := os.environ.get("COMPASS_ES_AGENTCOMPASS_PYTHON"):
            jobs["AgentCompass's own tracker"] = [peer, "-c", _TRACKER, str(plain)]
        side_by_side(jobs, options.rounds)
        side_by_side({name: [*this, name, str(sealed)] for name in SEALED_JOBS}, options.rounds)


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


if __name__ == "__main__":
    main()
