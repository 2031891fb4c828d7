"""Run directories: finding them below a folder, and reading the small JSON files that they hold.

A run directory holds `run_info.json` or `progress.jsonl`. Nothing in one is trusted as a path.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from eventstore.errors import InputError, MalformedLineError
from eventstore.format import codec
from eventstore.stream.line_reader import open_regular
from eventstore.stream.scan import STREAM_NAME

RUN_INFO_NAME = "run_info.json"
PROGRESS_NAME = "progress.json"
PARAMS_NAME = "params.json"
RUN_LOG_NAME = "run.log"
MAX_JSON_BYTES = 1024 * 1024 * 1024


class RunDir(Struct, frozen=True):
    """A run directory and its `run_key`: its path relative to the folder that was searched, with `/`."""

    path: Path
    run_key: str


class StoredFile(Struct, frozen=True):
    """A small JSON file as it stands: the object in it, or None and the problem in words. Both None: no such file."""

    path: Path
    members: dict[str, Any] | None = None
    problem: str | None = None


def is_run_dir(path: Path) -> bool:
    """Return whether a folder is a run directory."""
    folder = os.fspath(path)  # thousands of these are made for one query, and pathlib takes longer than the system
    return os.path.lexists(f"{folder}/{RUN_INFO_NAME}") or os.path.lexists(f"{folder}/{STREAM_NAME}")


def open_run(path: str | os.PathLike[str]) -> Path:
    """Return the run directory that `path` names. Raises InputError, in words, if it is none."""
    run_dir = Path(path)
    if not run_dir.exists():
        raise InputError(f"{run_dir}: there is no such folder", run_dir)
    if not run_dir.is_dir():
        raise InputError(f"{run_dir}: is a file, and a run is a folder", run_dir)
    if not is_run_dir(run_dir):
        _check_readable(run_dir)
        raise InputError(f"{run_dir}: is no run directory: it has neither {RUN_INFO_NAME} nor {STREAM_NAME}", run_dir)
    return run_dir


def find_runs(root: str | os.PathLike[str], on_problem: Callable[[str, str], None] | None = None) -> Iterator[RunDir]:
    """Yield all run directories at or below `root`, in the order of their paths; a run inside a run is not looked for.

    Each real folder is read once, under its own name where it lies below `root`. Folders that can't be read, and links
    to what is read already, are told to `on_problem(path, words)` and passed over. Raises
    InputError if `root` itself can't be read.
    """
    root = Path(root)
    if not root.exists():
        raise InputError(f"{root}: there is no such folder", root)
    if not root.is_dir():
        raise InputError(f"{root}: is a file; a run directory or a folder above some is needed", root)
    if is_run_dir(root):
        yield RunDir(root, root.resolve().name or ".")
        return
    _check_readable(root)
    yield from _walk(root, on_problem or (lambda path, words: None))


def find_all(
    paths: Iterable[str | os.PathLike[str]], on_problem: Callable[[str, str], None] | None = None
) -> Iterator[RunDir]:
    """Yield the runs at or below several paths, each once. Raises InputError where there is none below one of them."""
    seen: set[str] = set()
    for path in paths:
        found = 0
        for run in find_runs(path, on_problem):
            found += 1
            real = os.path.realpath(run.path)
            if real not in seen:
                seen.add(real)
                yield run
        if not found:
            raise InputError(f"{path}: there is no run directory at or below it", path)


def _walk(root: Path, on_problem: Callable[[str, str], None]) -> Iterator[RunDir]:
    """Walk real folders, each once; links come last, and one that leads to a folder already walked is only named."""
    walked: set[tuple[int, int]] = set()
    links: list[tuple[Path, str]] = []
    runs = [*_walk_folder(root, "", walked, links, on_problem)]
    while links:
        folder, key = links.pop(0)
        status = _identity(folder, on_problem)
        if status is None:
            continue
        if status in walked:
            on_problem(str(folder), _link_words(folder))
        elif is_run_dir(folder):
            walked.add(status)
            runs.append(RunDir(folder, key))
        else:
            runs += _walk_folder(folder, f"{key}/", walked, links, on_problem)
    yield from sorted(runs, key=lambda run: run.run_key.split("/"))


def _link_words(link: Path) -> str:
    target = Path(os.path.realpath(link))
    if target in Path(os.path.realpath(link.parent), "_").parents:
        return "is a link to a folder above it"
    return f"is a link to {target}, which is read already"


def _walk_folder(
    folder: Path,
    key: str,
    walked: set[tuple[int, int]],
    links: list[tuple[Path, str]],
    on_problem: Callable[[str, str], None],
) -> Iterator[RunDir]:
    """Yield the runs in a folder and the real folders below it, and add the links to folders to `links`."""
    here = _identity(folder, on_problem)
    if here is None or here in walked:
        return
    walked.add(here)
    try:
        entries = sorted((entry.name, entry.is_symlink()) for entry in os.scandir(folder) if entry.is_dir())
    except OSError as error:
        on_problem(str(folder), f"can't be read: {error.strerror}")
        return
    for name, is_link in entries:
        path = folder / name
        if is_link:
            links.append((path, key + name))
        elif is_run_dir(path):
            identity = _identity(path, on_problem)
            if identity is not None and identity not in walked:
                walked.add(identity)
                yield RunDir(path, key + name)
        else:
            yield from _walk_folder(path, f"{key}{name}/", walked, links, on_problem)


def _identity(folder: Path, on_problem: Callable[[str, str], None]) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError as error:
        on_problem(str(folder), f"can't be read: {error.strerror}")
        return None
    return status.st_dev, status.st_ino


def _check_readable(folder: Path) -> None:
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise InputError(f"{folder}: can't be read: {error.strerror}", folder) from None
    if not os.access(folder, os.X_OK):
        raise InputError(f"{folder}: can't be entered: no permission to look at what is in it", folder)


def read_json_file(path: Path) -> StoredFile:
    """Return the JSON object in a small file; whatever is wrong with it becomes words, never an exception."""
    if not os.path.lexists(path):
        return StoredFile(path)
    try:
        fd = open_regular(path)
    except InputError as error:
        return StoredFile(path, problem=error.message.removeprefix(f"{path}: "))
    try:
        size = os.fstat(fd).st_size
        if size > MAX_JSON_BYTES:
            return StoredFile(path, problem=f"is {size} bytes long, too long to be read")
        content = _read_all(fd, size)
    except OSError as error:
        return StoredFile(path, problem=f"can't be read: {error.strerror}")
    finally:
        os.close(fd)
    return parse_json_file(path, content)


def parse_json_file(path: Path, content: bytes) -> StoredFile:
    """As `read_json_file`, from bytes already read."""
    if not content.strip(b" \t\r\n\0"):
        return StoredFile(path, problem="is empty" if not content.strip() else f"is {len(content)} NUL bytes")
    try:
        return StoredFile(path, members=codec.parse_object(content))
    except MalformedLineError as error:
        return StoredFile(path, problem=f"is {error}".replace("of the line", "of the file"))


def _read_all(fd: int, size: int) -> bytes:
    parts, offset = [], 0
    while data := os.pread(fd, max(1, min(size - offset + 1, 1 << 24)), offset):
        parts.append(data)
        offset += len(data)
    return b"".join(parts)
