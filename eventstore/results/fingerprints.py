"""The fingerprint of an artifact: one SHA-256 over names, modes, sizes and bytes, equal to AgentCompass 1.0.1's.

What is hashed, entry after entry, sorted by the parts of the path: a JSON array `[name, mode, size or null]` in ASCII,
then `dir:`, `link:` and the link's target, or `file:` and the bytes. The name is relative to the artifact ("." for a
folder itself; a single file has its own name). `size_bytes` counts bytes of files, `file_count` every entry, the folder
itself included. A link that leads out of the artifact, and anything that is neither file, folder nor link, is refused.

Threads: hashlib lets go of the interpreter lock, so `fingerprint_all` takes several artifacts at once.
"""

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path

from msgspec import Struct

from eventstore.errors import InputError, RefusedError, UsageError
from eventstore.format.events import Json
from eventstore.stream.line_reader import describe_kind

_STEP = 1024 * 1024
MIB = 1024 * 1024


class ArtifactLimits(Struct, frozen=True):
    """How much one operation may take: bytes of files, entries (files, folders, links), seconds of wall time."""

    max_bytes: int = 16 * 1024 * MIB
    max_entries: int = 100_000
    timeout_seconds: float = 600.0

    @classmethod
    def from_plan(cls, value: object) -> "ArtifactLimits":
        """The limits that a plan records ({max_mb, max_files, timeout_seconds}); the defaults where it has none."""
        members: Json = value if isinstance(value, dict) else {}
        megabytes, entries = members.get("max_mb", 16 * 1024), members.get("max_files", 100_000)
        seconds = members.get("timeout_seconds", 600.0)
        if not all(isinstance(number, int | float) and 0 < number < 1e15 for number in (megabytes, entries, seconds)):
            raise UsageError("artifact limits must be positive numbers")
        return cls(int(megabytes * MIB), int(entries), float(seconds))


UNLIMITED = ArtifactLimits(2**62, 2**31, 1e9)


class Fingerprint(Struct, frozen=True):
    """SHA-256 (hex), bytes of all files, and number of entries of an artifact."""

    sha256: str
    size_bytes: int
    file_count: int


class Budget:
    """What is left of one operation's limits. Every use raises RefusedError, in words, when it is spent."""

    def __init__(self, limits: ArtifactLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._clock = limits, clock
        self._deadline = clock() + limits.timeout_seconds
        self.bytes_used = self.entries_used = 0

    def spend(self, path: object, *, entries: int = 0, size: int = 0) -> None:
        """Count entries and bytes, and look at the clock."""
        self.entries_used += entries
        self.bytes_used += size
        if self.entries_used > self.limits.max_entries:
            raise RefusedError(f"{path}: more than {self.limits.max_entries} entries, the artifact limit", path)
        if self.bytes_used > self.limits.max_bytes:
            raise RefusedError(f"{path}: more than {self.limits.max_bytes} bytes, the artifact limit", path)
        if self._clock() > self._deadline:
            raise RefusedError(f"{path}: not done after {self.limits.timeout_seconds:g} s, the artifact limit", path)

    def share(self) -> "Budget":
        """Return a budget with the same limits and deadline whose use is counted on its own."""
        mine = Budget(self.limits, self._clock)
        mine._deadline = self._deadline
        return mine


def fingerprint(path: Path, budget: Budget | None = None, *, root_name: str | None = None) -> Fingerprint:
    """Return the fingerprint of a file or a folder. `root_name` stands in for the artifact's own name.

    Raises RefusedError for links that escape, special files, a file that changes while it is read, and beyond the
    limits; InputError for what can't be read.
    """
    budget = (budget or Budget(ArtifactLimits())).share()
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise RefusedError(f"{path}: an artifact must not be a symbolic link itself", path)
        names = sorted(_entries(path, budget)) if stat.S_ISDIR(mode) else [()]
        root = path if stat.S_ISDIR(mode) else path.parent
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(_STEP))
        base = os.fspath(path)
        for parts in names:
            name = _name(path, parts, stat.S_ISDIR(mode)) if parts or root_name is None else root_name
            _add(digest, os.path.join(base, *parts), name, root, budget, buffer)
    except OSError as error:
        raise InputError(f"{error.filename or path}: can't be read: {error.strerror}", path) from None
    return Fingerprint(digest.hexdigest(), budget.bytes_used, len(names))


def fingerprint_all(paths: Sequence[Path], budget: Budget, workers: int = 0) -> Iterator[Fingerprint]:
    """Yield the fingerprints of several artifacts, in their order, computed by threads; the sum must fit the budget."""
    workers = workers or min(8, os.cpu_count() or 1)
    if len(paths) < 2 or workers < 2:
        results: Iterator[Fingerprint] = (fingerprint(path, budget) for path in paths)
        yield from _counted(results, paths, budget)
        return
    with ThreadPoolExecutor(min(workers, len(paths))) as pool:
        yield from _counted(pool.map(lambda path: fingerprint(path, budget), paths), paths, budget)


def _counted(results: Iterator[Fingerprint], paths: Sequence[Path], budget: Budget) -> Iterator[Fingerprint]:
    for path, result in zip(paths, results, strict=True):
        budget.spend(path, entries=result.file_count, size=result.size_bytes)
        yield result


def _entries(folder: Path, budget: Budget) -> Iterator[tuple[str, ...]]:
    """Yield the parts of every entry's path, the folder itself as (); links are not followed."""
    budget.spend(folder, entries=1)
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        yield parts
        with os.scandir(os.path.join(folder, *parts)) as entries:
            for entry in entries:
                budget.spend(folder, entries=1)
                inner = (*parts, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(inner)
                else:
                    yield inner


def _name(path: Path, parts: tuple[str, ...], is_folder: bool) -> str:
    return "/".join(parts) or ("." if is_folder else path.name)


def _add(digest: "hashlib._Hash", path: str, name: str, root: Path, budget: Budget, buffer: memoryview) -> None:
    status = os.lstat(path)
    mode = status.st_mode
    # A link to a file counts as a file here, with the size of the link: that is what AgentCompass records.
    size = status.st_size if stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and os.path.isfile(path)) else None
    digest.update(f"[{_quoted(name)},{mode & 0o777},{'null' if size is None else size}]".encode())
    if stat.S_ISLNK(mode):
        digest.update(b"link:" + _link_target(path, root))
    elif stat.S_ISREG(mode):
        digest.update(b"file:")
        _add_bytes(digest, path, status.st_size, budget, buffer)
    elif stat.S_ISDIR(mode):
        digest.update(b"dir:")
    else:
        raise RefusedError(f"{path}: is {describe_kind(mode)}, and an artifact holds files, folders and links", path)


def _link_target(path: str, root: Path) -> bytes:
    target = os.readlink(path)
    if _is_loop(path):
        raise RefusedError(f"{path}: a link that leads in a circle", path)
    inside = os.path.realpath(root)
    if os.path.isabs(target) or os.path.commonpath([inside, os.path.realpath(path)]) != inside:
        raise RefusedError(f"{path}: a link that leads out of the artifact", path)
    try:
        return target.encode()
    except UnicodeEncodeError:
        raise RefusedError(f"{path}: a link whose target is no UTF-8", path) from None


def _is_loop(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _add_bytes(digest: "hashlib._Hash", path: str, size: int, budget: Budget, buffer: memoryview) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if size > _STEP:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        seen = 0
        while count := os.readv(fd, [buffer]):
            budget.spend(path, size=count)
            digest.update(buffer[:count])
            seen += count
    finally:
        os.close(fd)
    if seen != size:
        raise RefusedError(f"{path}: changed while it was read ({size} bytes, then {seen})", path)
