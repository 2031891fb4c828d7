"""What is durable when nobody says anything: the documents tell it, and it is so."""

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore.recording.agentcompass import reporter
from eventstore.recording.recorder import RunRecorder
from eventstore.results.schema import AttemptResult
from eventstore.results.store import TaskStore
from eventstore.stream.filesystem import FileSystem
from eventstore.stream.log import EventLog

DOCUMENTS = Path(__file__).parents[2] / "docs"


class SyncedFiles(FileSystem):
    """The real file system, and which inodes were synced."""

    def __init__(self) -> None:
        self.synced: set[int] = set()

    def fsync(self, fd: int) -> None:
        self.synced.add(os.fstat(fd).st_ino)
        os.fsync(fd)


def publish(run: Path, **options: Any) -> tuple[set[str], set[str]]:
    """Publish a task, and return which names were synced by the time it was told saved, and which were there."""
    files = SyncedFiles()
    seen: list[tuple[str, bool]] = []

    def told(_: object) -> None:
        paths = [run / "details", *(run / "details").rglob("*")]
        seen.extend((path.name, path.stat().st_ino in files.synced) for path in paths)

    store = TaskStore(run, append=told, files=files, **options)
    answer = AttemptResult(status="completed", metrics={"correct": True}, final_answer="7")
    store.publish("t", category=None, ground_truth="7", attempt_plan={"k": 1, "strategy": "avg"}, attempts={1: answer})
    return {name for name, synced in seen if synced}, {name for name, _ in seen}


def test_a_publication_is_synced_before_it_is_told_unless_somebody_asked_otherwise(tmp_path: Path) -> None:
    """Both records, the folders that name them, and the state's folder, which the rename changed."""
    synced, there = publish(tmp_path / "default")
    assert {"result.json", "task.json", "attempt-1", "normal", "details"} <= synced & there
    synced, there = publish(tmp_path / "scratch", durable=False)
    assert synced == set() and "result.json" in there
    words = " ".join((DOCUMENTS / "results.md").read_text().split())
    assert "That is the default; `TaskStore(run_dir, durable=False)`" in words


@pytest.mark.parametrize(
    "begin",
    [RunRecorder.create, RunRecorder.open, RunRecorder.attach, RunRecorder.analyze, EventLog.open, reporter],
)
def test_the_default_durability_of_events_is_the_documented_one(begin: Callable[..., object]) -> None:
    """The one row of the table in docs/durability.md that calls itself the default."""
    (documented,) = re.findall(r"\| `(\w+)` \(default\) \|", (DOCUMENTS / "durability.md").read_text())
    assert inspect.signature(begin).parameters["durability"].default == documented
