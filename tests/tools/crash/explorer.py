"""Explore the states that crashes leave: `python -m tests.tools.crash.explorer --seed 1 --states 100000`.

Each seed makes one scenario of each kind, records every call, and builds states at every point between two calls:
first those that a list gives (the last write cut at every byte, subsets of what was not synced, of data and of names),
then random ones. Every state is judged; some of them again at every point of the recovery itself (a second crash).
Catalogs are slow to judge, and tried where they are asked for: `--only catalog`.
"""

import argparse
import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from eventstore.stream.filesystem import REAL

from . import catalogs
from .catalog_judge import Judge
from .commands import judge_commands
from .disk import Point, RecordingFileSystem, points
from .judge import Wrong, check, errors_in, judge, judge_analysis, judge_recovery, judge_repair, lay_down
from .scenarios import SCENARIOS, Scenario, accepted
from .states import State, at_random, folders, systematic

RANDOM_PER_POINT = 60
THOROUGH_EVERY = 4
"""Replay, and verify once more, after recovery: one of so many states of log, recorder and repair, every
state of replay and close."""
SECOND_CRASH_EVERY = 500
SECOND_CRASH_STATES = 10
CATALOG_SHARE = 300
"""States of one catalog scenario, where nothing is said; their list has no end."""
CATALOG_SECOND_CRASH_EVERY = 20
KINDS = (*SCENARIOS, catalogs.KIND)


class Exploration:
    """What was tried: distinct states by kind of scenario, points, second crashes, and what was wrong."""

    def __init__(self, root: Path, *, stop_at_first: bool = True) -> None:
        self.root, self.stop_at_first = root, stop_at_first
        self.states: Counter[str] = Counter()
        self.second_crashes = 0
        self.points = 0
        self.duplicates = 0
        self.met_twice = 0
        self.wrong: list[str] = []
        self._seen: set[bytes] = set()
        self._judge = Judge()

    def close(self) -> None:
        """End the process that judges catalogs."""
        self._judge.close()

    @property
    def total(self) -> int:
        return len(self._seen)

    def join(self, other: "Exploration") -> None:
        """Take over what another process found; states that both met count once, as duplicates the other time."""
        both = len(self._seen & other._seen)
        self._seen |= other._seen
        self.states += other.states
        self.met_twice += both
        self.duplicates += other.duplicates
        self.points += other.points
        self.second_crashes += other.second_crashes
        self.wrong += other.wrong

    def explore(
        self, seed: int, limit: int, *, share: int | None = None, kinds: Collection[str] = tuple(SCENARIOS)
    ) -> None:
        """Judge states of one seed's scenarios, at most `share` of each, until there are `limit` in all."""
        for name in kinds:
            folder = self._made()
            if name == catalogs.KIND:
                self._explore_catalog(folder, seed, limit, share or CATALOG_SHARE)
                continue
            scenario = SCENARIOS[name](folder, random.Random(f"{name} {seed}"))
            rng = random.Random(f"states {name} {seed}")
            before, stale = self.total, self.duplicates
            for point, state in self._states(scenario, rng, sampled=share is not None):
                self._try(name, seed, scenario, point, state, rng)
                if self.total >= limit:
                    return
                tried = self.total - before
                if share is not None and (tried >= share or self.duplicates - stale > 2000 + 2 * tried):
                    break

    def _made(self) -> Path:
        folder = self.root / "made"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def _explore_catalog(self, folder: Path, seed: int, limit: int, share: int) -> None:
        name = catalogs.KIND
        scenario = catalogs.catalog(folder, random.Random(f"{name} {seed}"))
        found = list(points(scenario.disk))
        self.points += len(found)
        tried = 0
        for point, state in catalogs.states(found, random.Random(f"states {name} {seed}")):
            if self.total >= limit or tried >= share:
                return
            if not self._is_new(name, state):
                continue
            tried += 1
            again = tried % CATALOG_SECOND_CRASH_EVERY == 0
            try:
                self.second_crashes += self._judge.judge(scenario, state, self._folder(), seed + tried, again)
            except Wrong as error:
                place = f"{name}, seed {seed}, state {tried}, point {point.number} of {len(scenario.disk.notes)}"
                self._found(f"{place}: {error}", state, error)

    def _is_new(self, name: str, state: State) -> bool:
        """Whether a state was not tried before; it is counted either way."""
        key = fingerprint(state)
        if key in self._seen:
            self.duplicates += 1
            return False
        self._seen.add(key)
        self.states[name] += 1
        return True

    def _states(self, scenario: Scenario, rng: random.Random, sampled: bool) -> Iterator[tuple[Point, State]]:
        found = list(points(scenario.disk))
        self.points += len(found)
        if sampled:  # spread over all points instead of all of each
            for point in found:
                if point.renamed:
                    yield from ((point, make()) for make in folders(point))
            listed = [(point, make) for point in found for make in systematic(point)]
            while True:
                point, make = rng.choice(listed)
                yield point, make()
                yield point, at_random(point, rng)
        for point in found:
            for make in systematic(point):
                yield point, make()
            for _ in range(RANDOM_PER_POINT):
                yield point, at_random(point, rng)

    def _try(self, name: str, seed: int, scenario: Scenario, point: Point, state: State, rng: random.Random) -> None:
        if not self._is_new(name, state):
            return
        folder = self._laid_down(state)
        second = RecordingFileSystem(folder) if self.total % SECOND_CRASH_EVERY == 0 else None
        try:
            cheap = scenario.kind in ("stream", "repair") and self.total % THOROUGH_EVERY
            thorough = second is not None or not cheap
            judge(scenario, point.acknowledged, state, folder, second or REAL, thorough=thorough)
            if second is not None:
                self._crash_again(scenario, point, second, rng)
        except Exception as error:
            place = f"{name}, seed {seed}, point {point.number} of {len(scenario.disk.notes)}"
            self._found(f"{place}: {type(error).__name__}: {error}", state, error)

    def _found(self, words: str, state: State, error: Exception) -> None:
        self.wrong.append(words)
        if not self.stop_at_first:
            print(words, flush=True)
            return
        keep = Path(tempfile.mkdtemp(prefix="crash-state-"))
        lay_down(state, keep)
        raise Wrong(f"{words}\nthe state is kept in {keep}") from error

    def call_commands(self, seed: int, count: int, *, without: frozenset[str] = frozenset()) -> int:
        """Every command on `count` random states of one seed's scenarios; how many calls were made."""
        made: list[tuple[str, list[Point]]] = []
        for name, make in SCENARIOS.items():
            made.append((name, list(points(make(self._made(), random.Random(f"{name} {seed}")).disk))))
        rng = random.Random(f"commands {seed}")
        calls = 0
        for number in range(count):
            name, found = made[number % len(made)]
            state = at_random(rng.choice(found), rng)
            if not {"progress.jsonl", "run_info.json"} & state.keys():
                continue
            try:
                calls += judge_commands(state, self.root / "commands", without=without)
            except Exception as error:
                raise Wrong(f"{name}, seed {seed}, state {number}: {type(error).__name__}: {error}") from error
        return calls

    def _crash_again(self, scenario: Scenario, point: Point, second: RecordingFileSystem, rng: random.Random) -> None:
        """Recovery was recorded: crash in the midst of it, and judge what that leaves by the same promises."""
        found = list(points(second))
        for _ in range(SECOND_CRASH_STATES):
            state = at_random(rng.choice(found), rng)
            self.second_crashes += 1
            judge_again(scenario, point, state, self._laid_down(state))

    def _laid_down(self, state: State) -> Path:
        folder = self._folder()
        lay_down(state, folder)
        return folder

    def _folder(self) -> Path:
        folder = self.root / "r"
        folder.mkdir(exist_ok=True)
        return folder


def judge_again(scenario: Scenario, point: Point, state: State, folder: Path) -> None:
    """After a second crash the stream has more than the scenario wrote; what was synced must still be there."""
    if scenario.kind == "repair":
        return judge_repair(scenario, state, folder, REAL)
    if scenario.kind == "analyze":
        return judge_analysis(scenario, {}, state, folder, REAL)
    synced = scenario.lines[: point.acknowledged.get("synced", 0)]
    stream = state.get("progress.jsonl", b"")
    check(all(line in stream for line in synced), "a second crash takes no synced line away")
    texts, verdicts = accepted(folder) if "progress.jsonl" in state else ([], {})
    check("lost_acknowledged" not in errors_in(verdicts), "a second crash makes no false alarm")
    return judge_recovery(synced, texts, folder, REAL)


def fingerprint(state: State) -> bytes:
    """16 bytes that tell one state from another."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        digest.update(f"{name}\0{len(state[name])}\0".encode())
        digest.update(state[name])
    return digest.digest()


def main() -> int:
    """Run, tell the figures, and give 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; more are taken until there are enough")
    parser.add_argument("--states", type=int, default=20_000, help="how many distinct states")
    parser.add_argument("--share", type=int, default=None, help="at most so many of each scenario")
    parser.add_argument("--only", action="append", choices=KINDS, help="only scenarios of this kind")
    parser.add_argument("--keep-going", action="store_true", help="collect what is wrong instead of stopping")
    parser.add_argument("--commands", type=int, default=0, help="every command on so many states, instead")
    parser.add_argument("--workers", type=int, default=1, help="processes; they take turns with the seeds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no new seed after so long")
    options = parser.parse_args()
    if catalogs.KIND in (options.only or ()) and not catalogs.is_possible():
        parser.error("DuckDB's calls can't be watched on this system")
    started = time.monotonic()
    if options.commands:
        with tempfile.TemporaryDirectory(dir=_base()) as root:
            found = Exploration(Path(root), stop_at_first=not options.keep_going)
            calls = sum(found.call_commands(options.seed + n, 20) for n in range(-(-options.commands // 20)))
        print(f"{calls} calls of commands on {options.commands} states, {time.monotonic() - started:.0f} s")
        return 0
    if options.workers == 1:
        found, seed = explore_seeds(options, 0)
    else:
        with ProcessPoolExecutor(options.workers) as pool:
            parts = list(pool.map(explore_seeds, [options] * options.workers, range(options.workers)))
        found, seed = parts[0][0], max(last for _, last in parts)
        for other, _ in parts[1:]:
            found.join(other)
    print(f"seeds {options.seed} to {seed}: {summary(found, time.monotonic() - started)}")
    for words in found.wrong[:50]:
        print(words)
    return 1 if found.wrong else 0


def explore_seeds(options: argparse.Namespace, worker: int) -> tuple[Exploration, int]:
    """What one worker finds in its share of the seeds, and the last one it took."""
    started, told = time.monotonic(), 0
    limit = -(-options.states // options.workers)
    seed = options.seed + worker
    with tempfile.TemporaryDirectory(dir=_base()) as root:
        found = Exploration(Path(root), stop_at_first=not options.keep_going)
        while found.total < limit and time.monotonic() - started < options.seconds:
            found.explore(seed, limit, share=options.share, kinds=options.only or tuple(SCENARIOS))
            seed += options.workers
            if found.total - told >= (1_000 if options.only == [catalogs.KIND] else 10_000):
                told = found.total
                print(f"{summary(found, time.monotonic() - started)}, seeds to {seed}", flush=True)
        found.close()
    return found, seed - options.workers


def _base() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def summary(found: Exploration, seconds: float) -> str:
    """The figures in one line."""
    kinds = ", ".join(f"{name} {count}" for name, count in found.states.items())
    twice = f"{found.met_twice} met by two workers, " if found.met_twice else ""
    return (
        f"{found.total} distinct states ({kinds}) at {found.points} points, {found.second_crashes} second crashes, "
        f"{found.duplicates} duplicates passed over, {twice}{len(found.wrong)} wrong, {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
