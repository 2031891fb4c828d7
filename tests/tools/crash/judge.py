"""What must hold of a state, whatever the crash left: the stream, the snapshots, verify, and everything that recovers.

A broken promise raises Wrong, with the promise in words.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eventstore.errors import DamagedError, RefusedError
from eventstore.format.events import PhaseChanged
from eventstore.format.records import VERDICTS
from eventstore.operations.close import close_run
from eventstore.operations.repair.repair import repair_run
from eventstore.operations.replay import replay_run
from eventstore.operations.verify.verify import verify_run
from eventstore.recording.recorder import RunRecorder
from eventstore.run.directory import RunDir
from eventstore.stream.filesystem import REAL, FileSystem
from eventstore.stream.log import EventLog
from eventstore.stream.scan import STREAM_NAME
from projections.verify.rules import RULES

from .scenarios import RUN_ID, Clock, Scenario, accepted
from .states import State

SNAPSHOT_CODES = frozenset(
    {"progress_drift", "progress_ahead", "progress_unreadable", "run_info_unreadable", "run_info_status"}
)
"""What verify says of snapshots that differ from the stream; the scenarios' few events break other rules on purpose."""


class Wrong(AssertionError):
    """A promise that a state breaks."""


def check(holds: bool, promise: str) -> None:
    if not holds:
        raise Wrong(promise)


def lay_down(state: State, folder: Path) -> None:
    """Make the folder hold exactly a state."""
    for path in folder.iterdir():
        if path.name not in state:
            path.unlink()
    for name, content in state.items():
        (folder / name).write_bytes(content)


def errors_in(verdicts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in verdicts.items() if VERDICTS[name] == "error"}


def judge(
    scenario: Scenario,
    acknowledged: Mapping[str, Any],
    state: State,
    folder: Path,
    files: FileSystem = REAL,
    *,
    thorough: bool = True,
) -> None:
    """Judge a state that is laid down in `folder`; what recovery writes goes through `files`.

    `thorough` replays and verifies after recovery.
    """
    if scenario.kind == "repair":
        return judge_repair(scenario, state, folder, files, thorough)
    if scenario.kind == "analyze":
        return judge_analysis(scenario, acknowledged, state, folder, files)
    texts = judge_stream(scenario, acknowledged, state, folder)
    if scenario.kind == "close":
        return judge_close(scenario, folder, files)
    if scenario.kind == "replay":
        for name, content in scenario.kept.items():
            check(content in state.values(), f"the {name} that replay replaced is kept")
    judge_recovery(scenario.lines[: acknowledged.get("synced", 0)], texts, folder, files, thorough)
    return None


def judge_stream(scenario: Scenario, acknowledged: Mapping[str, Any], state: State, folder: Path) -> list[bytes]:
    """Nothing synced is missing, nothing whole is passed over, nothing is invented, and damage is told from a tail."""
    content = state.get(STREAM_NAME)
    synced = acknowledged.get("synced", 0)
    if content is None:
        check(synced == 0, "a stream with synced lines has its name")
        return []
    check(content.startswith(b"".join(scenario.lines[:synced])), "every synced line is there")
    texts, verdicts = accepted(folder)
    errors = errors_in(verdicts)
    written = {line.rstrip(b"\n"): number for number, line in enumerate(scenario.lines)}
    check(all(text in written for text in texts), "no record is invented")
    numbers = [written[text] for text in texts]
    check(numbers == sorted(set(numbers)), "records come once, in order")
    ended = content[: content.rfind(b"\n") + 1]  # what has no newline yet is a tail, whole or not
    check(all(text in texts for text in written if text in ended), "every whole record is read")
    good = 0
    rest = content
    while good < len(scenario.lines) and rest.startswith(scenario.lines[good]):
        rest = rest[len(scenario.lines[good]) :]
        good += 1
    check("lost_acknowledged" not in verdicts, "nothing that was promised is reported missing")
    check(bool(errors) == (b"\n" in rest), f"damage is an error, a tail is none: {verdicts}")
    check(("torn_tail" in verdicts) == (not content.endswith(b"\n") and content != b""), "a tail is reported")
    report = verify_run(RunDir(folder, RUN_ID))
    counted = {code: count for code, count in report.counts.items() if code in VERDICTS}
    check(counted == verdicts, f"verify says what scan says: {counted}, {verdicts}")
    return texts


def judge_recovery(
    synced: list[bytes], texts: list[bytes], folder: Path, files: FileSystem, snapshots: bool = True
) -> None:
    """A writer can go on: at once, or, where damage is reported, after a repair that needs no consent."""
    _, verdicts = accepted(folder) if (folder / STREAM_NAME).exists() else ([], {})
    if errors_in(verdicts):
        try:
            EventLog.open(folder, run_id=RUN_ID, durability="os", files=files)
        except DamagedError:
            pass
        else:
            raise Wrong("nothing is appended to a damaged stream")
        repaired = repair_run(folder, apply=True, clock=Clock(2000.0), files=files)
        check(repaired.applied and not repaired.problems, f"repair needs no consent: {repaired}")
        after, verdicts = accepted(folder)
        check(not errors_in(verdicts), f"a repaired stream has no errors: {verdicts}")
        check(after[:-1] == texts, "repair keeps every record")
        texts = after
    with EventLog.open(folder, run_id=RUN_ID, durability="os", files=files, clock=Clock(3000.0)) as log:
        log.append(PhaseChanged(task_id="after", attempt=1, phase="run_task"))
    after, verdicts = accepted(folder)
    check(not errors_in(verdicts), f"appending leaves no damage: {verdicts}")
    check(after[:-1] == texts and b'"after"' in after[-1], "appending keeps every record, and adds one")
    content = (folder / STREAM_NAME).read_bytes()
    check(all(line in content for line in synced), "every synced line survives recovery")
    if snapshots:
        judge_snapshots(folder, files)


def judge_snapshots(folder: Path, files: FileSystem = REAL) -> None:
    """After replay the snapshots are those of the stream."""
    replayed = replay_run(folder, clock=Clock(5000.0), files=files)
    if replayed.refusals:
        check(all("ahead" in words for words in replayed.refusals), f"replay refuses only to lose: {replayed.refusals}")
        replay_run(folder, force=True, clock=Clock(5000.0), files=files)
    again = replay_run(folder, write=False, clock=Clock(5000.0))
    check(not again.changed, f"replay changes nothing twice: {again.changed}")
    report = verify_run(RunDir(folder, RUN_ID))
    wrong = [
        finding.code
        for finding in report.findings
        if finding.severity == "error" and (RULES[finding.code].group == "stream" or finding.code in SNAPSHOT_CODES)
    ]
    check(not wrong, f"verify finds nothing wrong with stream and snapshots: {wrong}")


def judge_repair(scenario: Scenario, state: State, folder: Path, files: FileSystem, thorough: bool = True) -> None:
    """The damaged stream is there, under its own name or another; a second call ends what the first began."""
    content = state.get(STREAM_NAME)
    check(content is not None, "there is a stream at every moment")
    check(scenario.damaged in state.values(), "the damaged stream is kept")
    if content != scenario.damaged:
        _, verdicts = accepted(folder)
        check(not errors_in(verdicts), f"the stream is the damaged one or the repaired one: {verdicts}")
    repair_run(folder, apply=True, accept_loss=True, clock=Clock(2000.0), files=files)
    texts, verdicts = accepted(folder)
    check(not errors_in(verdicts), f"a second call ends what the first began: {verdicts}")
    repairs = sum(b'"event":"stream_repaired"' in text for text in texts)
    check(repairs == 1, f"a stream that was repaired says so once, not {repairs} times")
    backups = [path for path in folder.glob("*.unrepaired-*") if path.read_bytes() == scenario.damaged]
    check(len(backups) == 1, f"the damaged stream is kept once, not {len(backups)} times")
    # To the real file system: what is appended unsynced may well be damaged by a second crash.
    judge_recovery([], texts, folder, REAL, thorough)


def judge_close(scenario: Scenario, folder: Path, files: FileSystem) -> None:
    """Closing again ends what the first call began: one terminal event, never two."""
    try:
        close_run(folder, "failed", "the machine was restarted", clock=Clock(2000.0), files=files)
    except DamagedError:
        check(repair_run(folder, apply=True, clock=Clock(2000.0), files=files).applied, "repair needs no consent")
        try:
            close_run(folder, "failed", clock=Clock(2000.0), files=files)
        except RefusedError as error:
            check("terminal event" in str(error), f"close refuses only a run that has ended: {error}")
    except RefusedError as error:
        check("terminal event" in str(error), f"close refuses only a run that has ended: {error}")
    texts, verdicts = accepted(folder)
    check(not errors_in(verdicts), f"closing leaves no damage: {verdicts}")
    check(sum(b'"event":"run_finished"' in text for text in texts) == 1, "a run has one terminal event")
    judge_snapshots(folder, files)


def judge_analysis(
    scenario: Scenario, acknowledged: Mapping[str, Any], state: State, folder: Path, files: FileSystem
) -> None:
    """The evaluation's stream is there, under its own name or beside; the analysis can be begun again."""
    evaluation = scenario.kept[STREAM_NAME]
    check(evaluation in state.values(), "the evaluation's stream is kept")
    synced = scenario.lines[: acknowledged.get("synced", 0)]
    content = state.get(STREAM_NAME)
    check(not synced or (content or b"").startswith(b"".join(synced)), "every synced line is there")
    if content is not None:
        _, verdicts = accepted(folder)
        check("lost_acknowledged" not in verdicts, "setting a stream aside makes no false alarm")
        if errors_in(verdicts):
            check(repair_run(folder, apply=True, clock=Clock(2000.0), files=files).applied, "repair needs no consent")
    RunRecorder.analyze(folder, durability="always", files=files, clock=Clock(3000.0)).close()
    texts, verdicts = accepted(folder)
    check(len(texts) == 1 and not verdicts, f"the analysis begins anew: {verdicts}")
    check(any(path.read_bytes() == evaluation for path in folder.iterdir()), "the evaluation's stream stays")
