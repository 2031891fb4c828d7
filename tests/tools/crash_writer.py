"""A process that records until it is killed: `python crash_writer.py DIR SEED DURABILITY`.

It writes the number of each event to stdout, in one write, as soon as the append has returned. Event n has the task
`n`, and a payload that the number alone determines, so that a reader can tell whether it is whole.
"""

import os
import random
import sys
import threading
from itertools import count
from pathlib import Path

from eventstore.format.events import PhaseChanged
from eventstore.recording.recorder import RunRecorder

REQUEST = {name: {"id": name} for name in ("model", "benchmark", "harness", "environment")}
SIZES = (0, 10, 100, 4000, 9000, 70_000, 1_000_000)


def filler(number: int, seed: int) -> str:
    """The text in event `number`: mostly short, now and then up to a megabyte."""
    dice = random.Random(f"{seed}/{number}")
    size = dice.choice(SIZES) if dice.random() < 0.3 else dice.randrange(200)
    return chr(97 + number % 26) * size


def main(run_dir: str, seed: int, durability: str) -> None:
    """Record with four threads, for ever."""
    began = (Path(run_dir) / "run_info.json").exists()
    opened = RunRecorder.open if began else RunRecorder.create
    options = {} if began else {"request": REQUEST}
    run = opened(run_dir, durability=durability, **options)  # type: ignore[operator]
    numbers, lock = count(run.log.position().seq + 1), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers)
            run.append(PhaseChanged(task_id=str(number), phase="p", payload={"x": filler(number, seed)}))
            os.write(1, b"%d\n" % number)

    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    work()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
