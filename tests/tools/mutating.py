"""Small random changes to one file of a run, as accidents make them, and their undoing."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

KINDS = {
    "progress.jsonl": "stream",
    "progress.json": "progress.json",
    "run_info.json": "run_info.json",
    "params.json": "params.json",
    "metrics.json": "metrics.json",
    "run.log": "run.log",
    "task.json": "task.json",
    "result.json": "result.json",
    "checkpoint.json": "checkpoint.json",
}


class Mutation(NamedTuple):
    """What was done to which file (relative to the run), and the kind of file."""

    kind: str
    file: str
    change: str


def kind_of(path: Path, run: Path) -> str:
    """The kind of a file, for rates."""
    parts = path.relative_to(run).parts
    if "artifacts" in parts:
        return "artifact"
    if "retries" in parts:
        return "retries/"
    return KINDS.get(path.name, "other")


def change_digit(random: Random, content: bytes) -> bytes | None:
    digits = [found.start() for found in re.finditer(rb"\d", content)]
    if not digits:
        return None
    position = random.choice(digits)
    other = random.choice([digit for digit in b"0123456789" if digit != content[position]])
    return content[:position] + bytes([other]) + content[position + 1 :]


def flip_byte(random: Random, content: bytes) -> bytes | None:
    if not content:
        return None
    position = random.randrange(len(content))
    return content[:position] + bytes([content[position] ^ (1 << random.randrange(8))]) + content[position + 1 :]


def drop_line(random: Random, content: bytes) -> bytes | None:
    lines = content.splitlines(keepends=True)
    if len(lines) < 2:
        return None
    del lines[random.randrange(len(lines))]
    return b"".join(lines)


def repeat_line(random: Random, content: bytes) -> bytes | None:
    lines = content.splitlines(keepends=True)
    if len(lines) < 2:
        return None
    position = random.randrange(len(lines))
    return b"".join([*lines[: position + 1], *lines[position:]])


def swap_lines(random: Random, content: bytes) -> bytes | None:
    lines = content.splitlines(keepends=True)
    if len(lines) < 3:
        return None
    position = random.randrange(len(lines) - 1)
    if lines[position] == lines[position + 1]:
        return None
    lines[position], lines[position + 1] = lines[position + 1], lines[position]
    return b"".join(lines)


def cut(random: Random, content: bytes) -> bytes | None:
    return content[: random.randrange(len(content))] if content else None


def zero(random: Random, content: bytes) -> bytes | None:
    if len(content) < 32:
        return None
    start = random.randrange(len(content) - 16)
    return content[:start] + b"\0" * 16 + content[start + 16 :]


CHANGES: dict[str, Callable[[Random, bytes], bytes | None]] = {
    "digit": change_digit,
    "byte": flip_byte,
    "dropped line": drop_line,
    "repeated line": repeat_line,
    "swapped lines": swap_lines,
    "cut": cut,
    "zeroed": zero,
}


@contextmanager
def mutated(run: Path, random: Random, kind: str | None = None) -> Iterator[Mutation]:
    """One random change to one file of a run (of that kind), undone at the end."""
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink()]
    by_kind: dict[str, list[Path]] = {}
    for path in files:
        by_kind.setdefault(kind_of(path, run), []).append(path)
    if kind is None:
        kind = random.choice(sorted(by_kind))
    path = random.choice(by_kind[kind])
    if kind in ("task.json", "result.json", "checkpoint.json") and random.random() < 0.3:
        yield from _moved(run, random, path, kind)
        return
    original, mode = path.read_bytes(), path.stat().st_mode
    changed = None
    name = ""
    while changed is None or changed == original:
        name = random.choice(sorted(CHANGES))
        changed = CHANGES[name](random, original)
    try:
        path.write_bytes(changed)
        yield Mutation(kind, path.relative_to(run).as_posix(), name)
    finally:
        path.write_bytes(original)
        path.chmod(mode)


def _moved(run: Path, random: Random, path: Path, kind: str) -> Iterator[Mutation]:
    """A file swapped with another of its name, a file that is gone, or a directory under another name."""
    content = path.read_bytes()
    others = [other for other in sorted(run.rglob(path.name)) if other != path and other.read_bytes() != content]
    relative = path.relative_to(run).as_posix()
    what = random.choice(["swapped", "gone", "renamed"] if others else ["gone", "renamed"])
    spare = path.with_name(f"{path.name}.spare")
    if what == "swapped":
        other = random.choice(others)
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
        try:
            yield Mutation(kind, relative, "swapped file")
        finally:
            path.write_bytes(one)
            other.write_bytes(two)
    elif what == "gone":
        path.rename(spare)
        spare_away = run.parent / f"{run.name}.spare"
        shutil.move(spare, spare_away)
        try:
            yield Mutation(kind, relative, "file gone")
        finally:
            shutil.move(spare_away, path)
    else:
        folder = path.parent
        renamed = folder.with_name(f"{folder.name}x")
        folder.rename(renamed)
        try:
            yield Mutation(kind, relative, "renamed folder")
        finally:
            renamed.rename(folder)
