"""How often a command reads a stream: once, and once more only where it was rewritten or changed under the lock."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.stream.moment import Moment, Prefix
from eventstore.stream.scan import STREAM_NAME, Scan, scan
from projections import fold
from projections.timeline import timeline
from tests.tools import breaking
from tests.tools.commands import Command
from tests.tools.failures import Copy
from tests.tools.streams import plain_line

Passes = Counter[str]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """Count the passes over each file, by its name."""
    counted: Passes = Counter()
    begin = Scan.__init__

    def count(self: Scan, path: Path, **options: object) -> None:
        counted[Path(path).name] += 1
        begin(self, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Scan, "__init__", count)
    return counted


def drop_snapshots(run: Path) -> None:
    """Make both snapshots differ from the stream."""
    (run / "progress.json").unlink()
    info = json.loads((run / "run_info.json").read_text())
    del info["resolved_execution_plans"]
    (run / "run_info.json").write_text(json.dumps(info))


def stale_snapshot(run: Path) -> None:
    """Leave progress.json as it was after half the stream."""
    lines = (run / STREAM_NAME).read_bytes().splitlines(keepends=True)
    moment = json.loads(lines[len(lines) // 2])["timestamp"]
    breaking.edit_progress(updated_at=moment)(run)


def damage(run: Path) -> None:
    """Spoil a line in the middle."""
    lines = (run / STREAM_NAME).read_bytes().splitlines(keepends=True)
    lines[40] = b"\x00" * 30 + b"\n"
    (run / STREAM_NAME).write_bytes(b"".join(lines))


def nothing(run: Path) -> None:
    """Leave the run as it was recorded."""


CASES: dict[str, tuple[str, Callable[[Path], None], list[str], int]] = {
    "show": ("r_kill_mid", nothing, ["show", "RUN"], 1),
    "show, an event": ("r_kill_mid", nothing, ["show", "RUN", "--at-event", "50"], 1),
    "show, a time": ("r_kill_mid", nothing, ["show", "RUN", "--at-time", "2026-11-29T14:34:49"], 1),
    "runs": ("r_kill_mid", nothing, ["runs", "RUN"], 1),
    "watch": ("r_kill_mid", nothing, ["watch", "RUN", "--once"], 1),
    "tail": ("r_kill_mid", nothing, ["tail", "RUN"], 1),
    "diagnose": ("r_kill_mid", nothing, ["diagnose", "RUN"], 1),
    "task": ("r_kill_mid", nothing, ["task", "RUN", "arith-009"], 1),
    "diff": ("r_kill_mid", nothing, ["diff", "RUN", "RUN@50"], 2),
    "verify": ("r_kill_mid", nothing, ["verify", "RUN"], 1),
    "verify, a stale snapshot": ("r_kill_mid", stale_snapshot, ["verify", "RUN"], 1),
    "replay that agrees": ("r_ok", nothing, ["replay", "RUN"], 1),
    "replay that writes": ("r_ok", drop_snapshots, ["replay", "RUN"], 1),
    "replay, a time": ("r_kill_mid", nothing, ["replay", "RUN", "--at-time", "2026-11-29T14:34:49"], 1),
    "reuse plan": ("r_kill_mid", nothing, ["reuse", "plan", "RUN"], 1),
    "reuse lineage": ("r_resumed", nothing, ["reuse", "lineage", "RUN"], 0),
    "repair plan, nothing to do": ("r_kill_mid", nothing, ["repair", "RUN"], 1),
    "repair plan": ("r_kill_mid", damage, ["repair", "RUN"], 1),
    "repair": ("r_kill_mid", damage, ["repair", "RUN", "--apply"], 2),  # and once after the rename
    "close": ("r_kill_mid", nothing, ["close", "RUN", "--status", "failed"], 2),  # and once with its terminal event
}


@pytest.mark.parametrize("name", CASES)
def test_a_command_reads_the_stream_once(name: str, run_dir: Copy, command: Command, passes: Passes) -> None:
    """Every pass over a stream of gigabytes takes seconds."""
    recorded, change, words, expected = CASES[name]
    run = run_dir(recorded)
    change(run)
    passes.clear()
    assert command(*(word.replace("RUN", str(run)) for word in words)) in (0, 1), command.err
    assert passes[STREAM_NAME] == expected


def test_a_stream_that_changes_before_the_lock_is_read_again(
    run_dir: Copy, command: Command, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What replay writes is the state of the stream that it holds the lock on."""
    from eventstore.operations import replay

    run = run_dir("r_kill_mid")
    drop_snapshots(run)
    last = json.loads((run / STREAM_NAME).read_bytes().splitlines()[-1])
    end = plain_line(
        0, last["run_id"], event="run_finished", status="failed", timestamp=last["timestamp"], task_id=None
    )

    class SlowLock(replay.RunLock):
        def __init__(self, *where: Path, **options: bool) -> None:
            with open(run / STREAM_NAME, "ab") as stream:
                stream.write(end + b"\n")
            super().__init__(*where, **options)

    monkeypatch.setattr(replay, "RunLock", SlowLock)
    assert command("replay", run) == 0
    assert json.loads((run / "progress.json").read_text())["status"] == "failed" and passes[STREAM_NAME] == 2


@pytest.mark.parametrize("held", [0, 1 << 26])
def test_a_moment_takes_all_records_up_to_the_last_that_belongs(
    held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes back in mid-stream, so records that belong follow ones that are too late; whatever is held."""
    from eventstore.stream import moment

    monkeypatch.setattr(moment, "HELD_BYTES", held)
    times = [100.0 + n for n in range(2000)] + [50.0 + n for n in range(1000)] + [5000.0 + n for n in range(10)]
    lines = [plain_line(n, timestamp=time, task_id=f"t{n % 7}", attempt=1) for n, time in enumerate(times)]
    (tmp_path / STREAM_NAME).write_bytes(b"\n".join(lines) + b"\n")
    for wanted in (0.0, 99.0, 600.0, 3000.0, 5003.0, 9999.0):
        stream = scan(tmp_path)
        count = max((n + 1 for n, time in enumerate(times) if time <= wanted), default=0)
        blocks = list(Prefix(stream, Moment(timestamp=wanted)).blocks())
        assert [line for block in blocks for line in block.lines] == [line + b"\n" for line in lines[:count]]
        assert [block.first_seq for block in blocks] == [
            0,
            *(sum(len(block.heads) for block in blocks[:n]) for n in range(1, len(blocks))),
        ][: len(blocks)]
        assert stream.records == len(lines)
        same = fold(timeline, Prefix(scan(tmp_path), Moment(events=count)))
        assert fold(timeline, Prefix(scan(tmp_path), Moment(timestamp=wanted))) == same
