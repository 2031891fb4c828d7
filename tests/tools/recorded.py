"""Where the recorded runs of tests/data are, by name; for fixtures and for `parametrize`.

A run's name is its folder's (`r_ok`), or its path below the root where two folders share one
(`k3/20261129_143950`). `RUNS` names those that lie unpacked; `BIG` is packed and unpacked on demand.
"""

import json
import lzma
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
ROOT = DATA / "runs"
BIG = "r_big"
BIG_KEY = "toy-70b_toy_arith_openai_chat/r_big"


def _keys_by_name() -> dict[str, str]:
    keys = sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/run_info.json"))
    shared = Counter(key.rpartition("/")[2] for key in keys)
    return {(last if shared[last := key.rpartition("/")[2]] == 1 else key): key for key in keys}


RUNS: dict[str, str] = _keys_by_name()
"""Name → path below `ROOT`, of every run that lies unpacked."""


def key_of(name: str) -> str:
    """The path below the root of the run called `name` (or of that path); KeyError with all names where none is."""
    key = BIG_KEY if name in (BIG, BIG_KEY) else name if name in RUNS.values() else RUNS.get(name)
    if key is None:
        raise KeyError(f"no recorded run {name!r}; there are {', '.join([*RUNS, BIG])}")
    return key


def unpack_big(root: Path) -> Path:
    """Unpack `r_big` below `root`, as `<group>/r_big`, and return its directory."""
    return unpack(BIG, root) / BIG_KEY


def unpack(archive: str, root: Path) -> Path:
    """Unpack the runs of tests/data/`archive`.tar.xz below `root`, and return `root`."""
    with tarfile.open(DATA / f"{archive}.tar.xz") as packed:
        packed.extractall(root, filter="data")
    return root


@cache
def _oracle_lines() -> dict[str, list[str]]:
    names = {key: name for name, key in RUNS.items()} | {BIG_KEY: BIG}
    lines: dict[str, list[str]] = {}
    with lzma.open(DATA / "oracle.jsonl.xz", "rt", encoding="utf-8") as stored:
        for line in stored:
            lines.setdefault(names[json.loads(line)["run"]], []).append(line)
    return lines


class Oracle(Mapping[str, list[tuple[int, dict[str, Any]]]]):
    """AgentCompass's own snapshots: name of a run → [(events folded, snapshot)], fewest events first.

    A run's snapshots are parsed at each look-up, so that a test may change what it gets. Key order is kept:
    `json.dumps(snapshot, ensure_ascii=False)` is the stored text again.
    """

    def __getitem__(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        rows = map(json.loads, _oracle_lines()[name])
        return [(row["events"], row["snapshot"]) for row in rows]

    def __iter__(self) -> Iterator[str]:
        return iter(_oracle_lines())

    def __len__(self) -> int:
        return len(_oracle_lines())
