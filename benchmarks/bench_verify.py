"""What does it cost to verify many runs? Ours beside one scan of the streams, and peers that only read or count.

    python -m benchmarks.bench_verify [--runs 100] [--events 10000] [--artifacts 400] [--rounds 3]

First a history of streams and snapshots; the yardstick is one scan of all streams in one process. Then runs with task
details and artifacts (`--artifacts` MiB in all); the yardstick is `sha256sum` of the same files.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

from .measure import report, side_by_side

RECORDED = Path(__file__).parent.parent / "tests/data/runs/toy-7b_toy_arith_openai_chat/r_resumed"
ARTIFACT_BYTES = 2 * 1024 * 1024


def scan_all(root: Path) -> tuple[int, str | None]:
    from eventstore.run.directory import find_runs
    from eventstore.stream.scan import scan

    return sum(len(block.heads) for run in find_runs(root) for block in scan(run.path).blocks()), None


def verify_with(processes: int, secrets: str = "records") -> Callable[[Path], tuple[int, str | None]]:
    def job(root: Path) -> tuple[int, str | None]:
        from eventstore.operations.verify.verify import Options, verify_paths

        digest, events = sha256(), 0
        for found in verify_paths([root], Options(secrets=secrets), processes=processes):  # type: ignore[arg-type]
            events += found.events
            digest.update(f"{found.run_key} {found.events} {sorted(found.counts.items())}".encode())
        return events, digest.hexdigest()[:12]

    return job


def _run(command: list[str], files: list[Path]) -> str:
    done = subprocess.run([*command, *map(str, files)], stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def sha256sum(root: Path) -> tuple[int, str | None]:
    _run(["sha256sum"], sorted(path for path in root.rglob("*") if path.is_file()))
    return 0, None


def jq(root: Path) -> tuple[int, str | None]:
    counted = _run(["jq", "-n", "reduce inputs.event as $e (0; . + 1)"], sorted(root.rglob("*.jsonl")))
    return int(counted), None


def duckdb_count(root: Path) -> tuple[int, str | None]:
    import duckdb

    sql = "SELECT count(event) FROM read_json(?, format='newline_delimited', columns={event: 'VARCHAR'})"
    row = duckdb.execute(sql, [str(root / "**/progress.jsonl")]).fetchone()
    assert row is not None
    return row[0], None


HISTORY_JOBS: dict[str, Callable[[Path], tuple[int, str | None]]] = {
    "scan, one process": scan_all,
    "verify, one process": verify_with(1),
    "verify, all processors": verify_with(os.cpu_count() or 1),
    "verify without credentials": verify_with(1, "none"),
    "sha256sum": sha256sum,
    "jq: count": jq,
    "duckdb: count": duckdb_count,
}
DETAILS_JOBS: dict[str, Callable[[Path], tuple[int, str | None]]] = {
    "sha256sum, with details": sha256sum,
    "verify with details, one process": verify_with(1),
    "verify with details, all processors": verify_with(os.cpu_count() or 1),
}
NEEDS = {"jq: count": "jq", "sha256sum": "sha256sum", "sha256sum, with details": "sha256sum"}


def make_history(root: Path, runs: int, events: int) -> None:
    """Streams with the snapshots that they fold to."""
    from eventstore.stream.scan import scan
    from projections import replay

    from .generate import write_history

    write_history(root, runs, events)
    for stream in root.rglob("progress.jsonl"):
        found = replay(scan(stream))
        (stream.parent / "progress.json").write_bytes(found.rendered_progress)
        (stream.parent / "run_info.json").write_bytes(found.rendered_run_info)


def make_details(root: Path, mebibytes: int) -> None:
    """Copies of a recorded run whose attempts have one artifact each, with manifests that hold."""
    from eventstore.results.fingerprints import fingerprint

    random, left, number = Random(1), mebibytes * 1024 * 1024, 0
    while left > 0:
        number += 1
        run = root / f"copy-{number}" / RECORDED.name
        shutil.copytree(RECORDED, run)
        for path in sorted(run.glob("details/*/*/attempt-*/checkpoint.json")):
            members = json.loads(path.read_text())
            if left <= 0 or "evaluation" not in members:
                break
            file = path.parent / "artifacts" / "out.bin"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(random.randbytes(ARTIFACT_BYTES))
            left -= ARTIFACT_BYTES
            found = fingerprint(file)
            entry = {"source": "/out.bin", "destination": "out.bin", "status": "collected", "kind": "file"}
            facts = {"sha256": found.sha256, "size_bytes": found.size_bytes, "file_count": found.file_count}
            members["evaluation"]["artifacts"]["entries"] = [entry | facts]
            path.write_text(json.dumps(members, ensure_ascii=False, indent=2))


def run_job(name: str, root: Path) -> None:
    """One job, its imports done before the clock starts."""
    if name.startswith("duckdb"):
        import duckdb  # noqa: F401
    if name.startswith(("verify", "scan")):
        import eventstore.operations.verify.verify  # noqa: F401
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    begin = time.perf_counter()
    events, digest = (HISTORY_JOBS | DETAILS_JOBS)[name](root)
    report(seconds=time.perf_counter() - begin, events=events, bytes=size, digest=digest)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--artifacts", type=int, default=400, help="MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        return run_job(options.job[0], Path(options.job[1]))
    this = [sys.executable, "-m", "benchmarks.bench_verify", "--job"]
    with tempfile.TemporaryDirectory() as folder:
        history, details = Path(folder) / "history", Path(folder) / "details"
        make_history(history, options.runs, options.events)
        make_details(details, options.artifacts)
        for jobs, root in ((HISTORY_JOBS, history), (DETAILS_JOBS, details)):
            names = [name for name in jobs if name not in NEEDS or shutil.which(NEEDS[name])]
            side_by_side({name: [*this, name, str(root)] for name in names}, options.rounds)


if __name__ == "__main__":
    main()
