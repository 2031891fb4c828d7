"""Jobs side by side: each in a process of its own, round after round, so that a busy moment hits all of them alike.

A job is a command whose last line on stdout is the JSON object that `report` prints: what it measured itself, without
the start of its interpreter. Quote the ratios; seconds belong to the machine they were taken on.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import IO, Any

# A process keeps the peak of the memory it was started from, so a large parent would lend its own to each job. This
# small one stands between: it starts the job, waits, and writes what wait4 says to a pipe.
_LAUNCHER = """
import json, os, sys
job = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(job, 0)
facts = [os.waitstatus_to_exitcode(status), usage.ru_maxrss, usage.ru_utime + usage.ru_stime]
os.write(int(sys.argv[1]), json.dumps(facts).encode())
"""


class JobError(Exception):
    """A job could not be started, failed, or did not end with the line of facts."""


@dataclass(frozen=True)
class Result:
    """What one job did once."""

    seconds: float
    """Measured by the job itself."""
    events: int
    bytes: int
    digest: str | None
    """Of the job's answer; None where there is nothing to compare, as for a bare decoding."""
    peak_mebibytes: float
    """Resident memory of its largest process."""
    cpu_seconds: float
    """User and system time of the whole process, its start included."""


class Disagreement(Exception):
    """Jobs that should compute the same thing did not, so their times can't be compared."""


def report(*, seconds: float, events: int, bytes: int, digest: str | None = None) -> None:
    """Print a job's line of facts; the last thing that a job does."""
    print(json.dumps({"seconds": seconds, "events": events, "bytes": bytes, "digest": digest}), flush=True)


def _facts(stdout: str, shown: str) -> dict[str, Any]:
    last = stdout.strip().rpartition("\n")[2]
    try:
        facts = json.loads(last)
        return {
            "seconds": float(facts["seconds"]),
            "events": int(facts["events"]),
            "bytes": int(facts["bytes"]),
            "digest": facts.get("digest"),
        }
    except (ValueError, TypeError, KeyError) as error:
        raise JobError(f"{shown}: its last line is not the line of facts: {last[:200]!r}") from error


def run_job(argv: Sequence[str]) -> Result:
    """Run one job to its end. Raises JobError with the end of its stderr where it fails."""
    shown = " ".join(argv)[:120]
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as facts, tempfile.TemporaryFile("w+", errors="replace") as stderr:
        try:
            launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(writing), *argv]
            done = subprocess.run(
                launcher, stdout=subprocess.PIPE, stderr=stderr, pass_fds=[writing], text=True, check=False
            )
        finally:
            os.close(writing)
        waited = facts.read()
        stderr.seek(0)
        complaint = stderr.read()[-500:].strip()
    if not waited:
        raise JobError(f"{shown}: could not be started: {complaint}")
    code, peak_kibibytes, cpu_seconds = json.loads(waited)
    if code:
        raise JobError(f"{shown}: ended with {code}: {complaint}")
    # Linux counts the peak in KiB, macOS in bytes.
    peak = peak_kibibytes / 1024 / (1024 if sys.platform == "darwin" else 1)
    return Result(**_facts(done.stdout, shown), peak_mebibytes=peak, cpu_seconds=cpu_seconds)


def side_by_side(
    jobs: Mapping[str, Sequence[str]], rounds: int = 5, *, out: IO[str] | None = None
) -> dict[str, list[Result]]:
    """Run all jobs in turn, `rounds` times, print the table to `out` (stdout) and return the results of each.

    A job that fails is named in the table and dropped from the rounds that follow; the others go on. Raises
    Disagreement after the table where answers differ, between jobs or between rounds.
    """
    out = sys.stdout if out is None else out
    results: dict[str, list[Result]] = {name: [] for name in jobs}
    failures: dict[str, JobError] = {}
    for _ in range(rounds):
        for name, argv in jobs.items():
            if name in failures:
                continue
            try:
                results[name].append(run_job(argv))
            except JobError as error:
                failures[name] = error
                results[name].clear()
    print(table(results), file=out)
    for name, failure in failures.items():
        print(f"{name} failed: {failure}", file=out)
    digests = {run.digest for runs in results.values() for run in runs if run.digest is not None}
    if len(digests) > 1:
        raise Disagreement(f"answers differ: {', '.join(sorted(digests))}")
    return results


HEAD = ["job", "digest", "median s", "min", "max", "ratio", "events/s", "MB/s", "peak MiB", "CPU s"]


def table(results: Mapping[str, Sequence[Result]]) -> str:
    """The results as text: times in seconds, the ratio of medians to the first job that ran, rate, memory, digest."""
    base = next((median(run.seconds for run in runs) for runs in results.values() if runs), 0.0)
    rows = [HEAD, *(_row(name, runs, base) for name, runs in results.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    names = [f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}" for row in rows]
    numbers = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True)) for row in rows]
    return "\n".join(f"{name}  {row}".rstrip() for name, row in zip(names, numbers, strict=True))


def _row(name: str, runs: Sequence[Result], base: float) -> list[str]:
    if not runs:
        return [name, "failed", *[""] * (len(HEAD) - 2)]
    seconds = [run.seconds for run in runs]
    middle = median(seconds)
    return [
        name,
        runs[-1].digest or "-",
        *(f"{value:.3f}" for value in (middle, min(seconds), max(seconds))),
        f"{middle / base:.2f}" if base else "-",
        f"{runs[-1].events / middle:,.0f}" if middle else "-",
        f"{runs[-1].bytes / middle / 1e6:,.0f}" if middle else "-",
        f"{max(run.peak_mebibytes for run in runs):.1f}",
        f"{median(run.cpu_seconds for run in runs):.2f}",
    ]
