"""Seeded file trees for artifact tests: names in odd alphabets, modes, links, empty folders; the same on every host.

Run as a program by an interpreter that has AgentCompass 1.0.1, it prints what that program's own fingerprint of each
tree is; `tests/data/artifacts/fingerprints.json` was made so.
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path

COUNT = 40
_NAMES = [
    "a",
    "a.b",
    "a-b",
    "a b",
    "B",
    "Ä",
    "é",
    "\u202e",
    "\U0001f600",
    "x" * 120,
    "..a",
    ".hidden",
    "z\n",
    "'",
    '"',
    "\\",
]
_TARGETS = [".", "B", "nowhere", "é"]
_MODES = [0o644, 0o600, 0o755, 0o700, 0o444, 0o640, 0o777]


def make_tree(folder: Path, number: int) -> Path:
    """Make tree `number` below `folder`; the path of the artifact, a folder or now and then a single file."""
    draw = random.Random(number)
    root = folder / f"tree-{number}"
    if number % 10 == 9:
        return _file(root, draw)
    _folder(root, draw, depth=3)
    return root


def _folder(path: Path, draw: random.Random, depth: int) -> None:
    path.mkdir()
    for name in draw.sample(_NAMES, draw.randint(0, 7)):
        kind = draw.random()
        if kind < 0.25 and depth:
            _folder(path / name, draw, depth - 1)
        elif kind < 0.4 and name not in _TARGETS:
            (path / name).symlink_to(draw.choice(_TARGETS))
        else:
            _file(path / name, draw)
    path.chmod(draw.choice([0o755, 0o700, 0o775, 0o555]))


def _file(path: Path, draw: random.Random) -> Path:
    path.write_bytes(draw.randbytes(draw.choice([0, 1, 17, 4096, 70_000])))
    path.chmod(draw.choice(_MODES))
    return path


def main() -> None:
    from agentcompass.runtime.artifacts import ArtifactLimits, _fingerprint

    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for number in range(COUNT):
            path = make_tree(Path(folder), number)
            found[str(number)] = _fingerprint(path, ArtifactLimits())
            for place, _, _ in os.walk(path):
                os.chmod(place, 0o700)
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
