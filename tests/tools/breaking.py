"""Ways to break one thing in a copy of a recorded run: one for each rule of the catalogue.

A breaker takes a run directory and changes it so that one rule does not hold any more. Where an event is changed,
`progress.json` is brought along (unless the drift is the point), so that nothing else contradicts.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from eventstore.format.codec import dump_pretty, utf8
from eventstore.operations.repair.repair import repair_run
from eventstore.results.fingerprints import fingerprint
from eventstore.stream.lock_file import LOCK_NAME, SLOT_BYTES, WRITER_BYTES, Mark, render_slot, render_writer
from eventstore.stream.scan import scan
from projections import Base, replay
from tests.tools.streams import sealed_lines

Json = dict[str, Any]
Breaker = Callable[[Path], None]


class Break(NamedTuple):
    """The recorded run to break, and how; `prepare` makes the sound run that it begins with."""

    run: str
    breaker: Breaker
    prepare: Breaker = lambda run: None


# -- small tools


def events_of(run: Path) -> list[Json]:
    return [json.loads(line) for line in (run / "progress.jsonl").read_bytes().split(b"\n") if line]


def write_events(run: Path, events: Iterable[Json], *, resync: bool = True) -> None:
    text = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events)
    (run / "progress.jsonl").write_bytes(utf8(text))
    if resync:
        bring_along(run)


def bring_along(run: Path) -> None:
    """Make progress.json what the stream now says."""
    stored = json.loads((run / "progress.json").read_text())
    folded = replay(scan(run), Base(progress=stored)).progress
    assert folded is not None
    (run / "progress.json").write_bytes(dump_pretty(folded, sort_keys=False))


def edit_file(name: str, change: Callable[[Json], Any], sort_keys: bool = True) -> Breaker:
    def breaker(run: Path) -> None:
        path = next(iter(sorted(run.glob(name))))
        members = json.loads(path.read_text())
        change(members)
        path.write_bytes(dump_pretty(members, sort_keys=sort_keys))

    return breaker


def edit_info(**changes: Any) -> Breaker:
    return edit_file("run_info.json", lambda info: info.update(changes))


def drop_info(*names: str) -> Breaker:
    return edit_file("run_info.json", lambda info: [info.pop(name) for name in names])


def edit_progress(**changes: Any) -> Breaker:
    return edit_file("progress.json", lambda progress: progress.update(changes), sort_keys=False)


def edit_events(change: Callable[[list[Json]], Any], *, resync: bool = True) -> Breaker:
    """Change the list of events, in place or by giving back another one."""

    def breaker(run: Path) -> None:
        events = events_of(run)
        changed = change(events)
        write_events(run, changed if isinstance(changed, list) else events, resync=resync)

    return breaker


def where(events: list[Json], event: str, nth: int = 0, **members: Any) -> int:
    """The position of the nth event of a kind with these members."""
    found = [
        position
        for position, candidate in enumerate(events)
        if candidate["event"] == event and all(candidate[name] == value for name, value in members.items())
    ]
    return found[nth]


def alter(event: str, nth: int = 0, payload: Json | None = None, **members: Any) -> Breaker:
    """Give the nth event of a kind other members, and its payload other ones."""

    def change(events: list[Json]) -> None:
        position = where(events, event, nth)
        found = events[position]
        events[position] = {**found, **members, "payload": {**found["payload"], **(payload or {})}}

    return edit_events(change)


def remove(event: str, nth: int = 0, **members: Any) -> Breaker:
    return edit_events(lambda events: events.pop(where(events, event, nth, **members)))


def repeat(event: str, nth: int = 0, after: str | None = None, after_nth: int = 0, **members: Any) -> Breaker:
    """Put a copy of an event right behind it, or behind another one; its time is just behind its new neighbour's."""

    def change(events: list[Json]) -> None:
        source = where(events, event, nth)
        target = source if after is None else where(events, after, after_nth)
        copy = {**events[source], "timestamp": events[target]["timestamp"] + 1e-6, **members}
        events.insert(target + 1, copy)

    return edit_events(change)


def lines_of(run: Path) -> list[bytes]:
    return (run / "progress.jsonl").read_bytes().splitlines(keepends=True)


def edit_lines(change: Callable[[list[bytes]], Any]) -> Breaker:
    def breaker(run: Path) -> None:
        lines = lines_of(run)
        changed = change(lines)
        (run / "progress.jsonl").write_bytes(b"".join(changed if isinstance(changed, list) else lines))

    return breaker


def seal_stream(run: Path) -> None:
    """The same run as our recorder would have written it: each line with its proof."""
    plain = [line.rstrip(b"\n") for line in lines_of(run)]
    lines = sealed_lines(plain, session=b'"writer":{"id":"w","host":"h","pid":1},')
    (run / "progress.jsonl").write_bytes(b"".join(lines))


def damage_and_repair(run: Path) -> None:
    """Rubbish between lines, and the repair of it."""
    edit_lines(lambda lines: lines.insert(20, b"rubbish\n"))(run)
    repair_run(run, apply=True)


def task_dir(run: Path, position: int = 0, state: str = "normal") -> Path:
    return sorted((run / "details" / state).iterdir())[position]


def attempt_dir(run: Path) -> Path:
    return task_dir(run) / "attempt-1"


def edit_task(name: str, change: Callable[[Json], Any], state: str = "normal") -> Breaker:
    return edit_file(f"details/{state}/*/{name}", change, sort_keys=False)


def add_artifacts(run: Path) -> None:
    """An attempt with one collected artifact, as AgentCompass's manifest has it."""
    attempt = task_dir(run) / "attempt-1"
    file = attempt / "artifacts" / "out" / "answer.txt"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"forty-two\n")
    file.chmod(0o644)
    found = fingerprint(file)
    entry = {
        "source": "/app/answer.txt",
        "destination": "out/answer.txt",
        "exclude": [],
        "service": None,
        "status": "collected",
        "kind": "file",
        "sha256": found.sha256,
        "size_bytes": found.size_bytes,
        "file_count": found.file_count,
    }
    path = attempt / "checkpoint.json"
    members = json.loads(path.read_text())
    members["evaluation"]["artifacts"]["entries"] = [entry]
    path.write_bytes(dump_pretty(members, sort_keys=False))


def artifact_of(run: Path) -> Path:
    return task_dir(run) / "attempt-1/artifacts/out/answer.txt"


def edit_evaluation(change: Callable[[Json], Any]) -> Breaker:
    return edit_task("attempt-1/checkpoint.json", lambda members: change(members["evaluation"]))


def promise_more(run: Path) -> None:
    """A witness that saw more of the stream than there is."""
    lines = lines_of(run)
    size = sum(map(len, lines))
    mark = Mark(seq=len(lines), bytes=size + 400, xxh3="0" * 16)
    content = render_writer({"id": "w", "host": "elsewhere", "pid": 1})
    content = content.ljust(WRITER_BYTES, b" ")
    (run / LOCK_NAME).write_bytes(content + render_slot(mark).ljust(SLOT_BYTES, b" "))


def as_directory_of(run: Path, name: str) -> None:
    (run / name).unlink()
    (run / name).mkdir()


def restart(events: list[Json]) -> list[Json]:
    later = events[-1]["timestamp"] + 1.0
    return [*events, *({**event, "timestamp": later} for event in events)]


def reuse_other_benchmark(run: Path) -> None:
    source = run.parent / "r_kill_mid"
    info = json.loads((source / "run_info.json").read_text())
    info["request"]["benchmark"]["id"] = "another"
    (source / "run_info.json").write_text(json.dumps(info))


def add_source(run: Path) -> None:
    source = run.parent / "r_kill_mid"
    source.mkdir()
    info = json.loads((run / "run_info.json").read_text())
    info["run_id"] = "r_kill_mid"
    (source / "run_info.json").write_text(json.dumps(info))


def move_task(run: Path, source: str, target: str, *, copy: bool = False) -> None:
    task = task_dir(run, state=source)
    place = run / "details" / target / task.name
    place.parent.mkdir(exist_ok=True)
    shutil.copytree(task, place) if copy else shutil.move(task, place)
    refer_to(place, target)


def refer_to(task: Path, state: str) -> None:
    """What AgentCompass does when it moves a task: its manifests refer to the new place."""
    for path in task.glob("attempt-*/checkpoint.json"):
        members = json.loads(path.read_text())
        artifacts = members["evaluation"]["artifacts"]
        artifacts["directory"] = f"details/{state}/{task.name}/{path.parent.name}/artifacts"
        path.write_bytes(dump_pretty(members, sort_keys=False))


def rename_task(run: Path) -> None:
    task = task_dir(run)
    wrong = task.with_name(f"{task.name[:-64]}{hashlib.sha256(b'other').hexdigest()}")
    task.rename(wrong)
    refer_to(wrong, "normal")


def in_flight_result(run: Path) -> None:
    """A task whose result was saved just before its run died."""
    events = events_of(run)
    last = max(position for position, event in enumerate(events) if event["event"] == "task_finished")
    write_events(run, events[:last])
    info = json.loads((run / "run_info.json").read_text())
    for name in ("status", "finished_at"):
        info.pop(name)
    (run / "run_info.json").write_bytes(dump_pretty(info, sort_keys=True))


def extra_task(run: Path) -> None:
    """A result of a task that no event speaks of."""
    task = task_dir(run)
    name = f"stranger--{hashlib.sha256(b'stranger').hexdigest()}"
    place = task.with_name(name)
    shutil.copytree(task, place)
    for path in (place / "task.json", *place.glob("attempt-*/checkpoint.json")):
        path.write_text(path.read_text().replace(json.loads((task / "task.json").read_text())["task_id"], "stranger"))
    refer_to(place, "normal")


def first_retries(run: Path) -> Path:
    return sorted(run.glob("details/*/*/attempt-*/retries/*.json"))[0]


def edit_retry_file(run: Path) -> None:
    path = first_retries(run)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"task_id": "another"}))


def other_plan(info: Json) -> None:
    task = next(iter(info["resolved_execution_plans"].values()))
    task["attempts"]["1"]["environment"]["id"] = "docker"


def clock_back(events: list[Json]) -> None:
    for event in events[10:]:
        event["timestamp"] -= 50.0


def clock_on(events: list[Json]) -> None:
    for event in events[10:]:
        event["timestamp"] += 5000.0


def swap(events: list[Json], first: int, second: int) -> None:
    events[first], events[second] = events[second], events[first]
    times = events[first]["timestamp"], events[second]["timestamp"]
    events[first]["timestamp"], events[second]["timestamp"] = times[1], times[0]


def unfinished(events: list[Json]) -> list[Json]:
    """Without the end of the last task."""
    last = where(events, "task_finished", -1)
    return [*events[:last], *events[last + 1 :]]


def glue(lines: list[bytes]) -> None:
    lines[20] = lines[20][:60] + lines[20]


def hold_stream_open(run: Path) -> None:
    """A writer at work: the lock is held by this process until it ends."""
    import fcntl

    fd = os.open(run / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    HELD.append(fd)


HELD: list[int] = []


def release_held() -> None:
    while HELD:
        os.close(HELD.pop())


def index_run(run: Path) -> None:
    """A catalog of the folder above the run has seen it."""
    from eventstore.history.sql.access import index

    index(run.parent)
