"""References to artifact folders inside stored JSON files, changed without parsing the files.

A reference is a member `"directory": "details/…/artifacts"`. In valid JSON its opening quote can only follow `{` or a
comma, and a quote inside a string is escaped, so the pattern can't match inside a text. A file without such a
reference is not written, however long it is.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from eventstore.errors import InputError
from eventstore.run.json_files import read_bytes
from eventstore.run.names import ARTIFACTS_NAME, RETRIES_NAME, TASK_STATES, attempt_number, is_leftover
from eventstore.stream.atomic_file import replace_file
from eventstore.stream.filesystem import REAL, FileSystem

_STATES = b"|".join(state.encode() for state in TASK_STATES)
_NEEDLE = b'"directory"'
_KEY = rb'("directory"[ \t\r\n]*:[ \t\r\n]*")'
_PLACE = re.compile(_KEY + rb"details/(?:(?:" + _STATES + rb')/)?([^/"\\]+)/')
_ARTIFACTS = re.compile(_KEY + rb'(details/(?:[^/"\\]+/)?([^/"\\]+/[^/"\\]+)/)(?=' + ARTIFACTS_NAME.encode() + rb'")')

Build = Callable[[re.Match[bytes]], bytes]


def point_at(task_dir: Path, relative: str, *, durable: bool, files: FileSystem = REAL) -> list[Path]:
    """Make every artifact reference in a task's records say that the task stands at `relative`; the changed files."""
    build = _at_place(task_dir, relative)
    return [path for path in records_of(task_dir) if _substitute(path, _PLACE, build, durable, files)]


def _at_place(task_dir: Path, relative: str) -> Build:
    name, place = task_dir.name.encode(), relative.encode() + b"/"
    return lambda found: found[1] + place if found[2] == name else found[0]


def points_elsewhere(task_dir: Path, relative: str) -> bool:
    """Return whether `point_at` would change anything."""
    build = _at_place(task_dir, relative)
    return any(_changed(path, _PLACE, build) is not None for path in records_of(task_dir))


def point_at_archive(attempt_dir: Path, archive: str, paths: list[Path], *, durable: bool, files: FileSystem) -> None:
    """Make references to an attempt's own artifacts say that they stand in `retries/<archive>/` now."""
    own = f"{attempt_dir.parent.name}/{attempt_dir.name}".encode()
    inner = f"{RETRIES_NAME}/{archive}/".encode()

    def build(found: re.Match[bytes]) -> bytes:
        return found[0] + inner if found[3] == own else found[0]

    for path in paths:
        _substitute(path, _ARTIFACTS, build, durable, files)


def records_of(task_dir: Path) -> Iterator[Path]:
    """Yield the JSON records of a task that may hold references; artifacts themselves are never touched."""
    for attempt in _folders(task_dir):
        if attempt_number(attempt.name) is not None:
            yield from _records(attempt)
            yield from _records(attempt / RETRIES_NAME)
            for archive in _folders(attempt / RETRIES_NAME):
                yield from _records(archive)


def _folders(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _records(folder: Path) -> Iterator[Path]:
    if folder.is_dir() and not folder.is_symlink():
        for path in sorted(folder.iterdir()):
            if path.suffix == ".json" and not is_leftover(path.name) and path.is_file() and not path.is_symlink():
                yield path


def _substitute(path: Path, pattern: re.Pattern[bytes], build: Build, durable: bool, files: FileSystem) -> bool:
    changed = _changed(path, pattern, build)
    if changed is None:
        return False
    replace_file(path, changed, durable=durable, files=files)
    return True


def _changed(path: Path, pattern: re.Pattern[bytes], build: Build) -> bytes | None:
    try:
        return _replaced(read_bytes(path), pattern, build)
    except (FileNotFoundError, InputError):
        return None


def _replaced(content: bytes, pattern: re.Pattern[bytes], build: Build) -> bytes | None:
    """`content` with its references rebuilt, or None where nothing changes. The plain search keeps long files cheap."""
    parts, done, at = [], 0, content.find(_NEEDLE)
    while at >= 0:
        found = pattern.match(content, at)
        if found is not None and content[max(0, at - 4096) : at].rstrip(b" \t\r\n")[-1:] in (b"{", b","):
            parts += [content[done:at], build(found)]
            done = found.end()
        at = content.find(_NEEDLE, at + 1)
    changed = b"".join([*parts, content[done:]]) if parts else content
    return None if changed == content else changed
