"""What is read of a long stream for its last events, and of a stream with a hole: bytes are counted, not seconds."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventstore.stream.follow import WHOLE_BYTES, last_blocks
from eventstore.stream.line_reader import after_last_newline, find_last
from eventstore.stream.scan import scan
from tests.tools.commands import Command
from tests.tools.failures import Copy
from tests.tools.streams import plain_line, sealed_stream

HOLE_BYTES = 64 << 30
ENOUGH_BYTES = 64 << 20
"""More than any command has to read of these runs."""
COUNT = 8_000
COMMANDS = [
    *([name, "RUN"] for name in ("tail", "show", "diagnose", "verify", "repair", "replay", "runs")),
    ["tail", "-n", "5", "RUN"],
    ["task", "RUN", "arith-001"],
    ["diff", "RUN", "RUN"],
    ["reuse", "plan", "RUN"],
    ["query", "died-runs", "RUN", "--no-catalog"],
    ["watch", "RUN", "--once"],
]


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """How many bytes were read at places so far."""
    total, pread, preadv = 0, os.pread, os.preadv

    def counted_pread(fd: int, count: int, offset: int) -> bytes:
        nonlocal total
        data = pread(fd, count, offset)
        total += len(data)
        assert total <= 4 * ENOUGH_BYTES, "the hole is read"
        return data

    def counted_preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal total
        count = preadv(fd, buffers, offset)
        total += count
        assert total <= 4 * ENOUGH_BYTES, "the hole is read"
        return count

    monkeypatch.setattr(os, "pread", counted_pread)
    monkeypatch.setattr(os, "preadv", counted_preadv)
    return lambda: total


def _stream(run: Path, lines: list[bytes]) -> Path:
    path = run / "progress.jsonl"
    path.write_bytes(b"".join(line.rstrip(b"\n") + b"\n" for line in lines))
    return path


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_the_last_events_of_a_long_stream_are_read_from_its_end(
    count: int, sealed: bool, tmp_path: Path, command: Command, bytes_read: Callable[[], int]
) -> None:
    """The very lines that a whole read ends with, for a small part of its bytes; half a line behind them waits."""
    path = _stream(tmp_path, sealed_stream(COUNT) if sealed else [plain_line(n) for n in range(COUNT)])
    size = path.stat().st_size
    assert size > WHOLE_BYTES
    assert command("tail", tmp_path) == 0
    whole, before = command.out.splitlines(), bytes_read()
    assert before >= size
    with path.open("ab") as stream:
        stream.write(b'{"run_id":"r","ev')
    assert command("tail", tmp_path, "-n", count) == 0
    assert command.out.splitlines() == whole[len(whole) - count :] and command.err == ""
    assert bytes_read() - before < size / 3 + count * 800


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("damage", ["cut", "blank", "changed", "foreign", "lost"])
def test_damage_near_the_end_is_read_as_a_whole_and_told(
    damage: str, sealed: bool, tmp_path: Path, command: Command
) -> None:
    """The last lines are then those of a whole read, with its words."""
    lines = sealed_stream(COUNT) if sealed else [plain_line(n) for n in range(COUNT)]
    lines = [line.rstrip(b"\n") for line in lines]
    if damage == "lost":
        del lines[-3]
    else:
        cut = {"cut": lines[-3][:40], "blank": b"", "foreign": plain_line(7, run_id="other")}
        lines[-3] = cut.get(damage, lines[-3].replace(b"plan", b"plam"))
    path = _stream(tmp_path, lines)
    assert command("tail", tmp_path) == 0
    whole, words = command.out.splitlines(), command.err
    found = scan(path)
    numbers = sum(1 for _ in found)
    assert command("tail", tmp_path, "-n", "5") == 0
    assert command.out.splitlines() == whole[-5:] and command.err == words and len(whole) == numbers
    if damage in {"cut", "foreign"}:
        assert last_blocks(path, 5) is None and words


def test_with_a_filter_the_last_events_are_the_last_that_pass(tmp_path: Path, command: Command) -> None:
    """However far from the end they stand."""
    _stream(tmp_path, [plain_line(n) for n in range(COUNT)])
    assert command("tail", tmp_path, "-n", "2", "--task", "t77") == 0
    found = [json.loads(line)["task_id"] for line in command.out.splitlines()]
    assert found == ["t7798", "t7799"]


def _sparse(run: Path, *, goes_on: bool) -> None:
    """Make a hole in the middle of a run's stream: with the rest of its lines behind it, or with nothing."""
    path = run / "progress.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    half = len(lines) // 2
    with path.open("wb") as stream:
        stream.writelines(lines[:half])
        stream.truncate(stream.tell() + HOLE_BYTES)
        if goes_on:
            stream.seek(0, os.SEEK_END)
            stream.writelines([b"\n", *lines[half:]])
    if path.stat().st_blocks * 512 > ENOUGH_BYTES:
        pytest.skip("this file system keeps no holes")


@pytest.mark.parametrize("goes_on", [False, True], ids=["at-the-end", "in-the-middle"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_reads_a_hole(
    words: list[str], goes_on: bool, run_dir: Copy, command: Command, bytes_read: Callable[[], int]
) -> None:
    """64 GiB that are not there hold nobody up."""
    run = run_dir("r_retry2")
    _sparse(run, goes_on=goes_on)
    assert command(*(str(run) if word == "RUN" else word for word in words)) in {0, 1, 3}
    assert bytes_read() < ENOUGH_BYTES


@pytest.mark.parametrize("goes_on", [False, True], ids=["at-the-end", "in-the-middle"])
def test_a_hole_is_told_as_nul_bytes(goes_on: bool, run_dir: Copy, bytes_read: Callable[[], int]) -> None:
    """One damage with its place and its length, and every record around it is read."""
    run = run_dir("r_retry2")
    lines = len((run / "progress.jsonl").read_bytes().splitlines())
    _sparse(run, goes_on=goes_on)
    found = scan(run)
    assert sum(1 for _ in found) == (lines if goes_on else lines // 2)
    [finding] = [finding for finding in found.findings if finding.code in ("corrupt_line", "torn_tail")]
    assert "NUL bytes" in finding.message and finding.length in (HOLE_BYTES, HOLE_BYTES + 1)


def test_a_search_goes_past_a_hole(tmp_path: Path, bytes_read: Callable[[], int]) -> None:
    """A line before and one behind it are found, at their offsets and numbers; so is the last newline."""
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(b"one\ntwo\n")
        file.truncate(HOLE_BYTES)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthree\n")
        file.truncate(2 * HOLE_BYTES)
    with path.open("rb") as file:
        found = find_last(file.fileno(), 2 * HOLE_BYTES, [b"two\n", b"three\n"])
        assert found == {b"two\n": (4, 2), b"three\n": (HOLE_BYTES + 1, 4)}
        assert after_last_newline(file.fileno(), 0, 2 * HOLE_BYTES) == HOLE_BYTES + 7
        assert after_last_newline(file.fileno(), 0, HOLE_BYTES) == 8
    assert bytes_read() < ENOUGH_BYTES
