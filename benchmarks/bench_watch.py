"""What does a live board cost while a run is busy? One core's share and memory of `watch` on a stream that is written.

    python -m benchmarks.bench_watch [--tasks 2000] [--rate 1000] [--seconds 30]

Writes events of so many active tasks at that rate, with the board on a terminal of its own, and prints one JSON object
with what happened: events, bytes, the share of a core, and resident memory at the start, in the middle and at the end.
"""

import argparse
import json
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

ENVELOPE = (
    "run_id",
    "event",
    "timestamp",
    "task_id",
    "category",
    "attempt",
    "phase",
    "status",
    "payload",
    "orchestration_id",
    "request_key",
    "request_name",
    "request_index",
)
PHASES = ("plan", "open_environment", "run_harness", "evaluate")


class Writer:
    """Events of a run with a fixed number of active tasks: phases change, and every seventh event changes a task."""

    def __init__(self, stream: IO[bytes], tasks: int) -> None:
        self.stream, self.tasks, self.events, self.bytes, self.next_task = stream, tasks, 0, 0, 0
        self.write("run_started", payload={"model": "m", "benchmark": "b", "harness": "h", "environment": "e"})
        self.write("tasks_loaded", payload={"total_tasks": 10 * tasks})
        for _ in range(tasks):
            self.start_task()

    def write(self, name: str, **members: Any) -> None:
        event = dict.fromkeys(ENVELOPE) | {"run_id": "r", "event": name, "timestamp": time.time(), "payload": {}}
        line = json.dumps(event | members).encode() + b"\n"
        self.stream.write(line)
        self.events, self.bytes = self.events + 1, self.bytes + len(line)

    def start_task(self) -> None:
        self.write("task_started", task_id=f"t{self.next_task}")
        self.write("phase_changed", task_id=f"t{self.next_task}", attempt=1, phase="plan")
        self.next_task += 1

    def step(self) -> None:
        oldest = self.next_task - self.tasks
        if self.events % 7 == 0:
            self.write("task_finished", task_id=f"t{oldest}", status="completed", payload={"severity": ""})
            self.start_task()
        else:
            task = oldest + self.events * 13 % self.tasks
            self.write("phase_changed", task_id=f"t{task}", attempt=1, phase=PHASES[self.events % 4])


def usage(pid: int) -> tuple[float, int]:
    """CPU seconds and resident KiB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[21]) * 4


def main() -> None:
    """Run it once and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("tasks", 2000), ("rate", 1000), ("seconds", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "progress.jsonl", "wb", buffering=0) as stream:
        writer = Writer(stream, options.tasks)
        terminal, side = pty.openpty()
        script = "from cli.main import main; main()"
        board = subprocess.Popen([sys.executable, "-c", script, "watch", folder], stdout=side, stderr=side, stdin=side)
        threading.Thread(target=drain, args=(terminal,), daemon=True).start()
        time.sleep(2)
        print(json.dumps(measure(writer, board.pid, options)))
        board.terminate()
        board.wait()


def drain(terminal: int) -> None:
    """A terminal that nobody reads would stop the board."""
    while os.read(terminal, 1 << 16):
        pass


def measure(writer: Writer, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    """Write for so many seconds at that rate; what the process took meanwhile."""
    start, events = time.monotonic(), writer.events
    first, memory = usage(pid)[0], [usage(pid)[1]]
    for share in (0.5, 1.0):
        while (passed := time.monotonic() - start) < options.seconds * share:
            for _ in range(max(0, int(passed * options.rate) - (writer.events - events))):
                writer.step()
            time.sleep(0.005)
        memory.append(usage(pid)[1])
    seconds = time.monotonic() - start
    return {
        "tasks": options.tasks,
        "events": writer.events - events,
        "seconds": round(seconds, 2),
        "stream_bytes": writer.bytes,
        "core_share": round((usage(pid)[0] - first) / seconds, 4),
        "resident_kib": memory,
    }


if __name__ == "__main__":
    main()
