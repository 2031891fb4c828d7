"""One run directory: its small files, one pass over its stream, and the state of its files on disk.

run = Run.open("results/…/r_1")
run.files.run_info.members, run.files.progress.problem
counts, rows = run.fold(progress, timeline)         # modules of `projections`; one pass for all of them
run.stream.verdicts, run.problem
"""

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from eventstore.errors import InputError
from eventstore.format.records import Base, Block
from eventstore.stream.moment import Moment, Prefix, require_events
from eventstore.stream.scan import STREAM_NAME, Scan, scan

from .directory import PARAMS_NAME, PROGRESS_NAME, RUN_INFO_NAME, RunDir, StoredFile, open_run, read_json_file
from .names import DETAILS_NAME

S = TypeVar("S")


class Fold(Protocol[S]):
    """What can be folded: a state made from what stored files add, and a batch of records applied to it."""

    def initial(self, base: Base) -> S: ...
    def apply_block(self, state: S, block: Block, /) -> S: ...


class RunFiles(Struct, frozen=True):
    """The small JSON files of a run as they are on disk."""

    progress: StoredFile
    run_info: StoredFile
    params: StoredFile

    @property
    def problems(self) -> list[StoredFile]:
        """The files that are there and can't be read."""
        return [file for file in (self.progress, self.run_info, self.params) if file.problem is not None]


FileIdentity = tuple[int, int, int, int, int]


class Run:
    """A run directory. Its files are read when they are first asked for, and always before its stream.

    `stream` is the pass over the stream that `fold` or `blocks` made, None before it and where there is no stream.
    `problem` says why the stream can't be read, None where it can.
    """

    def __init__(self, path: Path, run_key: str | None = None) -> None:
        self.path = path
        self.run_key = path.name if run_key is None else run_key
        self.stream: Scan | None = None
        self.problem: str | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """Return the run at `path`. Raises InputError where there is none."""
        return cls(open_run(path))

    @classmethod
    def of(cls, found: RunDir) -> "Run":
        """Return a run that a search below a folder has found."""
        return cls(found.path, found.run_key)

    @cached_property
    def files(self) -> RunFiles:
        """The small files. They are read before the stream, so those of a live run are never ahead of it."""
        names = (PROGRESS_NAME, RUN_INFO_NAME, PARAMS_NAME)
        return RunFiles(*(read_json_file(self.path / name) for name in names))

    def forget_files(self) -> None:
        """Forget the small files, so that they are read again when they are asked for next."""
        self.__dict__.pop("files", None)

    @property
    def has_stream(self) -> bool:
        """True where there is anything with the stream's name."""
        return os.path.lexists(self.path / STREAM_NAME)

    @property
    def sealed(self) -> bool:
        """True where any line that was read proves itself."""
        return self.stream is not None and self.stream.sealed

    @property
    def has_results(self) -> bool:
        """True where any task has a folder among the results."""
        try:
            with os.scandir(self.path / DETAILS_NAME) as states:
                folders = [state.path for state in states if state.is_dir(follow_symlinks=False)]
            return any(os.listdir(folder) for folder in folders)
        except OSError:
            return False

    def base(self, at: Moment | None = None) -> Base:
        """Return what the stored files add to a fold, of the run as it is or at an earlier moment."""
        files = self.files
        return Base(progress=files.progress.members, run_info=files.run_info.members, moment=at is not None)

    def fold(self, *folds: Fold[Any], at: Moment | None = None) -> list[Any]:
        """Return the state of each fold after the stream, or after its records up to a moment, in one pass.

        A stream that can't be read sets `problem`. Raises UsageError for a moment beyond the stream's end.
        """
        base = self.base(at)
        states = [fold.initial(base) for fold in folds]
        for block in self.blocks(at):
            for fold, state in zip(folds, states, strict=True):
                fold.apply_block(state, block)
        return states

    def blocks(self, at: Moment | None = None) -> Iterator[Block]:
        """Yield the records in batches, up to a moment; see `fold`."""
        self.stream = self.problem = None
        if not self.has_stream:
            require_events(at.events or 0 if at is not None else 0, 0)
            return
        try:
            self.stream = scan(self.path / STREAM_NAME)
            yield from (self.stream if at is None else Prefix(self.stream, at)).blocks()
        except InputError as error:
            self.problem = error.message

    def identity(self) -> tuple[FileIdentity | None, ...]:
        """Return what distinguishes the stream and both snapshots from later versions, None for a missing file."""
        return tuple(_identity(self.path / name) for name in (STREAM_NAME, PROGRESS_NAME, RUN_INFO_NAME))


def _identity(path: Path) -> FileIdentity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
