"""What is done while the disk is watched: seeded, small, each with all that may be expected afterwards."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eventstore.format import codec
from eventstore.format.events import (
    AttemptFinished,
    AttemptStarted,
    Event,
    ExecutionPlanResolved,
    PartialSaved,
    PhaseChanged,
    RunFinished,
    RunStarted,
    SummaryStarted,
    TaskFinished,
    TasksLoaded,
    TasksLoadedPayload,
    TaskStarted,
)
from eventstore.operations.close import close_run
from eventstore.operations.repair.repair import repair_run
from eventstore.operations.replay import replay_run
from eventstore.recording.recorder import RunRecorder
from eventstore.stream.log import EventLog
from eventstore.stream.scan import STREAM_NAME, scan

from .disk import RecordingFileSystem

RUN_ID = "r"
REQUEST = {
    "benchmark": {"id": "b"},
    "harness": {"id": "h"},
    "environment": {"id": "e"},
    "model": {"id": "m"},
    "output": {"run_id": RUN_ID},
}


@dataclass
class Scenario:
    """What was recorded. `lines` are all lines that the stream ever was given, in order, with their newlines.

    `kind` chooses the judge; `damaged` is the stream before a repair; `kept` are contents of which none may vanish.
    """

    kind: str
    disk: RecordingFileSystem
    lines: list[bytes] = field(default_factory=list)
    damaged: bytes = b""
    kept: dict[str, bytes] = field(default_factory=dict)


class Clock:
    """Moves by a quarter of a second at each look, from a time long ago."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        self.now += 0.25
        return self.now


def _event(rng: random.Random, number: int) -> Event:
    text = "".join(rng.choice('abc ü\u2028"\\\n€𝄞') for _ in range(rng.randint(0, 60)))
    choices: list[Event] = [
        PhaseChanged(task_id=f"t{number}", attempt=1, phase="run_task", payload={"note": text}),
        AttemptStarted(task_id=f"t{number}", attempt=1),
        TaskStarted(task_id=f"t{number}", category=text[:9] or None),
        PartialSaved(task_id=f"t{number}", attempt=1, payload={"number": rng.random()}),
    ]
    return rng.choice(choices)


def _plain_lines(rng: random.Random, count: int) -> bytes:
    """Lines without proof, spelled as AgentCompass spells them."""
    lines = []
    for number in range(count):
        event = _event(rng, number)
        members = codec.envelope_members(event) | {"run_id": RUN_ID, "timestamp": 900.0 + number}
        lines.append(codec.dump_compact(members).replace(b'":', b'": ') + b"\n")
    return b"".join(lines)


def _earlier_session(folder: Path, rng: random.Random, events: int) -> None:
    with EventLog.open(folder, run_id=RUN_ID, durability="os", clock=Clock(950.0)) as log:
        log.append(RunStarted())
        for number in range(events):
            log.append(_event(rng, number))
        log.sync()


def _lines_of(content: bytes) -> list[bytes]:
    return [line + b"\n" for line in content.split(b"\n")[:-1]]


def log(folder: Path, rng: random.Random) -> Scenario:
    """One or two sessions of the log, after nothing, AgentCompass, or a crash; synced always or now and then."""
    stream = folder / STREAM_NAME
    beginning = rng.choice(("empty", "sealed", "plain", "torn"))
    if beginning == "plain":
        stream.write_bytes(_plain_lines(rng, rng.randint(1, 4)))
    elif beginning != "empty":
        _earlier_session(folder, rng, rng.randint(0, 3))
    whole = stream.read_bytes() if stream.exists() else b""
    if beginning == "torn":
        stream.write_bytes(whole + rng.randbytes(rng.randint(1, 700)).replace(b"\n", b"\0"))
    disk, clock = RecordingFileSystem(folder), Clock()
    synced = len(_lines_of(whole))
    disk.acknowledge(synced=synced)
    for _ in range(rng.randint(1, 2)):
        durability = rng.choice(("always", "os"))
        opened = EventLog.open(folder, run_id=RUN_ID, durability=durability, files=disk, clock=clock)  # type: ignore[arg-type]
        for number in range(rng.randint(1, 7)):
            opened.append(_event(rng, number))
            synced += 1
            if durability == "always" or rng.random() < 0.2:
                opened.sync()
                disk.acknowledge(synced=synced)
        opened.close()
    return Scenario("stream", disk, _lines_of(stream.read_bytes()))


def recorder(folder: Path, rng: random.Random) -> Scenario:
    """A whole run with its snapshots, from the first file to the end, or left without one; opened again, or not."""
    disk, clock = RecordingFileSystem(folder), Clock()
    run = RunRecorder.create(folder, request=REQUEST, durability="always", file_log_level=None, files=disk, clock=clock)
    synced = 1
    disk.acknowledge(synced=synced)
    if rng.random() < 0.3:
        run.close()
        run = RunRecorder.open(folder, durability="always", file_log_level=None, files=disk, clock=clock)
    plan = {"policy": {"network": "public"}, "text": "x" * rng.randint(0, 200)}
    events: list[Event] = [
        TasksLoaded(payload=TasksLoadedPayload(total_tasks=1)),
        TaskStarted(task_id="t"),
        AttemptStarted(task_id="t", attempt=1),
        ExecutionPlanResolved(task_id="t", attempt=1, payload=plan),
        AttemptFinished(task_id="t", attempt=1, status="completed"),
        PartialSaved(task_id="t", attempt=1),
        TaskFinished(task_id="t", status="completed"),
        SummaryStarted(),
        RunFinished(status="completed"),
    ]
    for event in events[: rng.randint(1, len(events))]:
        run.append(event)
        synced += 1
        disk.acknowledge(synced=synced)
        if rng.random() < 0.5:
            run.live.refresh(everything=rng.random() < 0.5)
    run.close()
    return Scenario("stream", disk, _lines_of((folder / STREAM_NAME).read_bytes()))


def _damage(content: bytes, rng: random.Random) -> bytes:
    lines = _lines_of(content)
    number = rng.randrange(len(lines))
    how = rng.choice(("flip", "half", "drop", "twice", "swap", "garbage", "nul"))
    line = lines[number]
    at = rng.randrange(len(line) - 1)
    if how == "flip":
        lines[number] = line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]
    elif how == "half":
        lines[number] = line[:at] + line
    elif how == "drop" and len(lines) > 2:
        del lines[number]
    elif how == "twice":
        lines.append(line)
    elif how == "swap":
        other = rng.randrange(len(lines))
        lines[number], lines[other] = lines[other], lines[number]
    elif how == "nul":
        lines[number] = b"\0" * len(line)
    lines.insert(rng.randrange(len(lines)), b"garbage\n")
    return b"".join(lines) + (b"torn" if rng.random() < 0.3 else b"")


def repair(folder: Path, rng: random.Random) -> Scenario:
    """A damaged stream is repaired."""
    stream = folder / STREAM_NAME
    if rng.random() < 0.3:
        stream.write_bytes(_plain_lines(rng, rng.randint(2, 5)))
    else:
        _earlier_session(folder, rng, rng.randint(2, 5))
    damaged = _damage(stream.read_bytes(), rng)
    stream.write_bytes(damaged)
    if rng.random() < 0.5:
        (folder / "progress.json").write_bytes(b"{}\n")
    disk = RecordingFileSystem(folder)
    repair_run(folder, apply=True, accept_loss=True, clock=Clock(), files=disk)
    return Scenario("repair", disk, damaged=damaged)


def replay(folder: Path, rng: random.Random) -> Scenario:
    """Wrong snapshots are rebuilt."""
    _earlier_session(folder, rng, rng.randint(1, 4))
    kept = {"progress.json": b'{"status": "running"}\n', "run_info.json": b'{"run_id": "r", "other": 1}\n'}
    for name in rng.sample(sorted(kept), rng.randint(0, 2)):
        (folder / name).write_bytes(kept[name])
    kept = {name: content for name, content in kept.items() if (folder / name).exists()}
    disk = RecordingFileSystem(folder)
    lines = _lines_of((folder / STREAM_NAME).read_bytes())
    disk.acknowledge(synced=len(lines))
    replay_run(folder, clock=Clock(), files=disk)
    return Scenario("replay", disk, lines, kept=kept)


def close(folder: Path, rng: random.Random) -> Scenario:
    """A run that died is given its end."""
    stream = folder / STREAM_NAME
    if rng.random() < 0.3:
        stream.write_bytes(_plain_lines(rng, rng.randint(1, 4)))
    else:
        _earlier_session(folder, rng, rng.randint(0, 4))
    lines = _lines_of(stream.read_bytes())
    if rng.random() < 0.5:
        stream.write_bytes(stream.read_bytes() + b'{"run_id":"r","ev')
    disk = RecordingFileSystem(folder)
    disk.acknowledge(synced=len(lines))
    close_run(folder, "failed", "the machine was restarted", clock=Clock(), files=disk)
    disk.acknowledge(synced=len(lines) + 1)
    return Scenario("close", disk, _lines_of(stream.read_bytes()))


def analyze(folder: Path, rng: random.Random) -> Scenario:
    """The evaluation's stream is set aside, and that of a re-analysis begun."""
    _earlier_session(folder, rng, rng.randint(1, 4))
    evaluation = (folder / STREAM_NAME).read_bytes()
    (folder / "run_info.json").write_bytes(b'{"run_id": "r"}\n')
    disk, clock = RecordingFileSystem(folder), Clock()
    run = RunRecorder.analyze(folder, durability="always", files=disk, clock=clock)
    disk.acknowledge(synced=1)
    for number in range(rng.randint(0, 3)):
        run.append(PhaseChanged(task_id=f"t{number}", attempt=1, phase="analyze"))
        disk.acknowledge(synced=number + 2)
    run.close()
    lines = _lines_of((folder / STREAM_NAME).read_bytes())
    return Scenario("analyze", disk, lines, kept={STREAM_NAME: evaluation})


SCENARIOS: dict[str, Callable[[Path, random.Random], Scenario]] = {
    "log": log,
    "recorder": recorder,
    "repair": repair,
    "replay": replay,
    "close": close,
    "analyze": analyze,
}


def accepted(folder: Path) -> tuple[list[bytes], "dict[str, int]"]:
    """Texts of the records that a scan accepts, and its verdicts."""
    found = scan(folder, max_findings=0)
    texts = [line.rstrip(b"\n") for block in found.blocks() for line in block.lines]
    return texts, dict(found.verdicts)
