"""How long does the command take to start? `compass-es --help` and small calls beside a bare interpreter.

    python -m benchmarks.bench_start [--calls 10] [--rounds 3]

Each job starts a program that many times, one after the other; its time is the time of one start. An "event" in the
table is one start.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .generate import write_history
from .measure import report, side_by_side

REPOSITORY = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "compass_es"]


def start(argv: list[str], calls: int) -> None:
    """Start a program `calls` times and report the mean time of a start."""
    began = time.perf_counter()
    for _ in range(calls):
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True, cwd=REPOSITORY)
    report(seconds=(time.perf_counter() - began) / calls, events=1, bytes=0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how long the command takes to start.")
    parser.add_argument("--calls", type=int, default=10, help="starts in each job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        start(options.job, options.calls)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_history(Path(folder), 1, 300, seed=1)
        (run,) = (path.parent for path in Path(folder).glob("*/*/progress.jsonl"))
        programs = {
            "python": [sys.executable, "-c", "pass"],
            "python, import click": [sys.executable, "-c", "import click"],
            "compass-es --help": [*COMMAND, "--help"],
            "compass-es --version": [*COMMAND, "--version"],
            "compass-es show RUN": [*COMMAND, "show", str(run)],
            "compass-es runs FOLDER": [*COMMAND, "runs", folder],
        }
        module = [sys.executable, "-m", "benchmarks.bench_start", "--calls", str(options.calls), "--job"]
        side_by_side({name: [*module, *argv] for name, argv in programs.items()}, options.rounds)


if __name__ == "__main__":
    main()
