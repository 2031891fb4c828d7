"""What does one task result cost? Publishing, moving, asking for a status; and fingerprints beside bare SHA-256.

    python -m benchmarks.bench_results [--megabytes 42] [--others 2000] [--rounds 3] [--folder DIR]

A task with a long trajectory is published into a run without other tasks and into one with many; moving it and reading
its status are timed in both. AgentCompass 1.0.1 moves and reads the same folder where COMPASS_ES_AGENTCOMPASS_PYTHON
names an interpreter that has it. Then the same files are hashed bare and fingerprinted, one by one and in threads.
"""

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

PLAN = {"k": 1, "strategy": "avg"}
_PEER = """
import sys, time
from pathlib import Path
from agentcompass.runtime.results.layout import RunLayout, read_result
layout = RunLayout(Path(sys.argv[1]))
for name, action in (("move", lambda: layout.move_task("big", "error")),
                     ("read", lambda: read_result(layout.result_path("big"))["attempts"]["1"]["status"]),
                     ("back", lambda: layout.move_task("big", "normal"))):
    began = time.perf_counter(); action(); print(name, time.perf_counter() - began)
"""


def timed(action: Callable[[], Any], rounds: int) -> float:
    """Median seconds of an action."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return median(taken)


def trajectory(megabytes: int) -> dict[str, Any]:
    """A trajectory whose JSON is about so long."""
    text = "The agent reads the file, changes two lines and runs the tests again. " * 2
    return {"steps": [{"step_id": n, "content": text, "cost": n / 7, "tools": None} for n in range(megabytes * 5200)]}


def measure_task(folder: Path, others: int, megabytes: int, rounds: int) -> None:
    """Publish, move and read one big task among `others` small ones."""
    from eventstore.results.store import AttemptResult, TaskStore
    from eventstore.results.task_dirs import find_task

    store, run = TaskStore(folder, durable=True), folder
    quick = TaskStore(folder, durable=False)
    small = AttemptResult(status="completed", metrics={"correct": True})
    for number in range(others):
        quick.publish(f"t{number}", category=None, ground_truth=1, attempt_plan=PLAN, attempts={1: small})
    big = AttemptResult(status="completed", metrics={"correct": True}, trajectory=trajectory(megabytes))

    def publish() -> None:
        store.begin_attempt("big", 1)
        store.publish("big", category=None, ground_truth=1, attempt_plan=PLAN, attempts={1: big})

    seconds = timed(publish, rounds)
    task = find_task(run, "big")
    assert task is not None
    size = (task.attempts[1].path / "result.json").stat().st_size
    moves = [timed(lambda state=state: store.move("big", state), 1) for state in ("error", "normal") * rounds]
    status = timed(lambda: find_task(run, "big").attempts[1].read_result().status, rounds)  # type: ignore[union-attr]
    print(
        f"{others:6} other tasks, result of {size / 1e6:.0f} MB: publish {seconds:.3f} s, "
        f"move {median(moves):.3f} s, read status {status:.3f} s"
    )
    python = os.environ.get("COMPASS_ES_AGENTCOMPASS_PYTHON")
    if python:
        done = subprocess.run([python, "-c", _PEER, run], capture_output=True, text=True, check=True)
        print(f"        AgentCompass 1.0.1, the same folder: {', '.join(done.stdout.split(chr(10))[:3])} s")


def measure_fingerprints(folder: Path, rounds: int) -> None:
    """Bare SHA-256 of files beside their fingerprints, alone and in threads."""
    from eventstore.results.fingerprints import ArtifactLimits, Budget, fingerprint_all

    paths = [folder / f"file-{number}" for number in range(8)]
    for path in paths:
        path.write_bytes(random.Random(path.name).randbytes(1 << 20) * 64)

    def bare(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def in_threads() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(bare, paths))

    def prints(workers: int) -> list[Any]:
        return list(fingerprint_all(paths, Budget(ArtifactLimits()), workers))

    total = sum(path.stat().st_size for path in paths)
    for words, plain, ours in (
        ("one after another", lambda: list(map(bare, paths)), lambda: prints(1)),
        ("several at once", in_threads, lambda: prints(os.cpu_count() or 1)),
    ):
        first, second = timed(plain, rounds), timed(ours, rounds)
        print(f"fingerprints, {words}: {total / second / 1e9:.2f} GB/s, {first / second:.0%} of bare SHA-256")
    digests = "".join(one.sha256 for one in prints(1))
    print(f"        digest of digests {hashlib.sha256(digests.encode()).hexdigest()[:16]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=42)
    parser.add_argument("--others", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-results-", dir=options.folder))
    try:
        for others in (0, options.others):
            (root / str(others)).mkdir()
            measure_task(root / str(others), others, options.megabytes, options.rounds)
        measure_fingerprints(root, options.rounds)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
