"""Judges states of a catalog in a process of its own: DuckDB may break down on a damaged file, and that is a finding.

A broken promise raises Wrong. The process is asked by lines of JSON, and started again when it is gone.
"""

import contextlib
import functools
import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eventstore.history.catalog import catalog as catalogs_module
from eventstore.history.sql import access, ask
from eventstore.history.sql.access import CatalogChoice

from .calls import duckdb_library, led
from .catalogs import FILE_NAME, VIEWS, Answers, CatalogScenario, answers, states
from .disk import RecordingFileSystem, points
from .judge import Wrong, check, lay_down
from .states import State

PATIENCE_SECONDS = 120.0
SECOND_CRASH_STATES = 5


class Judge:
    """The process, and what it is asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End it; it is started again when it is asked."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def judge(self, scenario: CatalogScenario, state: State, folder: Path, seed: int, second: bool) -> int:
        """Judge a state laid down in `folder`; how many second crashes were tried. Raises Wrong."""
        lay_down(state, folder)
        asked = {
            "runs": str(scenario.runs),
            "folder": str(folder),
            "seed": seed,
            "second": second,
            "steps": scenario.steps,
        }
        answer = self._ask(asked)
        if "wrong" in answer:
            raise Wrong(answer["wrong"])
        return int(answer["second"])

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            root = Path(__file__).parents[3]
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_SECONDS)
        line = process.stdout.readline() if ready else b""
        if line:
            return dict(json.loads(line))
        self.close()
        return {"wrong": "nobody is kept waiting" if not ready else f"DuckDB breaks down: {process.returncode}"}


def judge_catalog(runs: Path, folder: Path, steps: list[Answers], seed: int) -> None:
    """Whatever is there: the answer as it is, the answer brought up to date, and nothing left to do after that.

    An odd seed brings it up to date as if somebody were reading it; one in three looks at the end.
    """
    file = folder / FILE_NAME
    found = _answer(runs, CatalogChoice(file=file, refresh=False))
    for view in VIEWS:
        for key, rows in found[view].items():
            # A run's rows in one view may be of a run that had none there, in a step before: then there is no key.
            check(any(step[view].get(key) == rows for step in steps), f"unrefreshed, {view} of {key} was once right")
    with _beside_a_reader() if seed % 2 else contextlib.nullcontext():
        check(_answer(runs, CatalogChoice(file=file)) == steps[-1], "refreshed, every view is right")
    if seed % 3:
        return
    done, _ = access.index(runs, file)
    check((done.read, done.removed) == (0, 0), f"nothing is left to do: {done}")
    left = {path.name for path in folder.iterdir()}
    check(left <= {FILE_NAME, f"{FILE_NAME}.lock", f"{FILE_NAME}.wal"}, f"nothing is left over: {left}")


@contextlib.contextmanager
def _beside_a_reader() -> Iterator[None]:
    before = catalogs_module.Catalog._open_for_writing
    catalogs_module.Catalog._open_for_writing = lambda self: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        catalogs_module.Catalog._open_for_writing = before  # type: ignore[method-assign]


def _answer(runs: Path, choice: CatalogChoice) -> Answers:
    told: list[str] = []

    def work(connection: Any) -> Answers:
        ask.ask(connection, "SELECT count(*) FROM events")
        return answers(connection)

    found = access.with_history([runs], work, catalog=choice, on_problem=lambda path, words: told.append(words))
    check(not any("catalog" in words for words in told), f"the catalog could be built: {told}")
    return found


def judge_second_crash(runs: Path, folder: Path, steps: list[Answers], seed: int) -> int:
    """Bring a catalog up to date on a watched disk, crash in the midst of it, and judge what that leaves."""
    disk, rng = RecordingFileSystem(folder), random.Random(seed)
    watched = functools.partial(catalogs_module.Catalog, files=disk)
    access.Catalog = watched  # type: ignore[misc, assignment]
    try:
        with led(disk, duckdb_library()):
            access.index(runs, folder / FILE_NAME)
    finally:
        access.Catalog = catalogs_module.Catalog  # type: ignore[misc]
    count = 0
    for _, state in states(list(points(disk)), rng, rot=False):
        lay_down(state, folder)
        judge_catalog(runs, folder, steps, rng.randrange(6))
        count += 1
        if count == SECOND_CRASH_STATES:
            break
    return count


def main() -> None:
    """Answer what is asked on stdin, line by line."""
    opened = access._open
    access._open = lambda memory_limit, threads: opened(memory_limit, 1)  # starting threads takes time
    access.paths_held_open = frozenset  # type: ignore[assignment]
    catalogs_module.LOCK_SECONDS = 5.0
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        runs, folder = Path(asked["runs"]), Path(asked["folder"])
        reply: dict[str, Any] = {"second": 0}
        try:
            if asked["second"]:
                reply["second"] = judge_second_crash(runs, folder, asked["steps"], asked["seed"])
            else:
                judge_catalog(runs, folder, asked["steps"], asked["seed"])
        except BaseException as error:
            reply = {"wrong": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(BrokenPipeError):
            out.write(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    main()
