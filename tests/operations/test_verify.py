"""`compass-es verify`: what recorded runs give, how it is told, and what it survives."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore.errors import InputError
from eventstore.format.events import SPECIFIED_EVENTS
from eventstore.operations.verify.verify import NOT_TO_THE_END, Options, verify_paths, verify_run
from eventstore.run.directory import RunDir
from eventstore.stream.scan import scan
from tests.tools import breaking
from tests.tools.commands import Command
from tests.tools.recorded import RUNS
from tests.tools.recording import record_run
from tests.tools.streams import sealed_stream

KILLED = {"r_kill_early", "r_kill_mid", "r_sigterm"}
SAID_OF = {
    "p_clock": {"clock_back": 1},
    "r_kill_early": {"no_terminal_event": 1, "task_in_flight": 2},
    "r_kill_mid": {"no_terminal_event": 1, "task_in_flight": 6, "task_left_running": 6},
    "r_sigterm": {"no_terminal_event": 1, "task_in_flight": 6, "task_left_running": 6},
    "r_surrogate": {"attempt_cut_off": 1, "task_left_running": 1},
    "r_evalerr_reanalysis": {"analysis_stream": 1, "directory_name": 1},
}
"""What recorded runs give beside `unsealed`; every other one gives nothing else."""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def one(run: Path, **options: object) -> Counter[str]:
    report = verify_run(RunDir(run, run.name), Options(**options))  # type: ignore[arg-type]
    assert not [finding for finding in report.findings if finding.message.startswith(NOT_TO_THE_END)]
    return Counter(report.counts)


# -- recorded runs


@pytest.mark.parametrize("name", RUNS)
def test_recorded_runs_give_what_a_careful_person_would_write_down(name: str, runs_root: Path) -> None:
    """No error in any of them: a clean run is calm, a killed one has warnings only."""
    run = runs_root / RUNS[name]
    report = verify_run(RunDir(run, name))
    assert report.counts == {"unsealed": 1} | SAID_OF.get(name, {})
    assert not [finding for finding in report.findings if finding.severity == "error"]


def test_a_run_without_details_is_sound_but_for_them(big_run: Path) -> None:
    """300 tasks, 9,254 events."""
    assert one(big_run) == {"unsealed": 1, "details_missing": 1, "log_missing": 1}


def test_a_resumed_run_beside_its_source_is_compared_with_it(run_dir: Callable[[str], Path]) -> None:
    """Reused tasks have plans and results without events, and that is no finding."""
    run_dir("r_kill_mid")
    assert one(run_dir("r_resumed")) == {"unsealed": 1}


def test_a_sealed_stream_is_not_called_unsealed(run_dir: Callable[[str], Path]) -> None:
    """The proof is checked, and nothing is said when it holds."""
    run = run_dir("r_ok")
    breaking.seal_stream(run)
    assert one(run) == {}


def test_a_run_of_our_recorder_is_sound(tmp_path: Path) -> None:
    """Its lines prove themselves; only the task details, which it was not asked to write, are missing."""
    record_run(tmp_path / "r")
    assert one(tmp_path / "r") == {"details_missing": 1}


# -- what it says and how


def test_json_has_the_members_that_others_rely_on(command: Command, runs_root: Path) -> None:
    """`runs`, `findings`, `checked`; each finding with its eleven members."""
    assert command("verify", runs_root, "--json") == 0
    document = command.document
    assert document["runs"] == len(RUNS)
    assert set(document["checked"]) == {"files", "bytes", "events"}
    assert document["checked"]["events"] == sum(len(list(scan(runs_root / key))) for key in RUNS.values())
    for finding in document["findings"]:
        assert list(finding) == [
            "code",
            "severity",
            "run_key",
            "run_id",
            "file",
            "offset",
            "line",
            "seq",
            "task_id",
            "attempt",
            "message",
        ]
    in_flight = [finding for finding in document["findings"] if finding["code"] == "task_in_flight"]
    assert {finding["run_id"] for finding in in_flight} == KILLED


def test_text_names_file_line_and_offset_and_ends_with_the_facts(
    command: Command, run_dir: Callable[[str], Path]
) -> None:
    """Compiler style; the offset is that of the line in question."""
    run = run_dir("r_ok")
    breaking.repeat("attempt_started")(run)
    assert command("verify", run) == 1
    lines = command.out.splitlines()
    found = next(
        re.match(r"(.*):(\d+):(\d+): error attempt_started_twice: .* \[task (.*) attempt 1\]$", line)
        for line in lines
        if "twice" in line
    )
    assert found is not None
    content = (run / "progress.jsonl").read_bytes()
    start = int(found[3])
    line = content[start : content.index(b"\n", start)]
    assert json.loads(line)["event"] == "attempt_started" and json.loads(line)["task_id"] == found[4]
    assert content[:start].count(b"\n") == int(found[2]) - 1
    assert re.fullmatch(r"1 run: \d+ files, \d+ bytes, 66 events: 1 errors, 0 warnings, 1 info", lines[-1])


def test_exit_codes(command: Command, runs_root: Path, run_dir: Callable[[str], Path]) -> None:
    """0 without errors, 1 for an error or with --strict for a warning, 2 for a wrong call, 3 for nothing to read."""
    killed = runs_root / RUNS["r_kill_mid"]
    assert command("verify", killed) == 0
    assert command("verify", killed, "--strict") == 1
    assert command("verify", runs_root / RUNS["r_ok"], "--strict") == 0
    broken = run_dir("r_ok")
    breaking.edit_progress(partials_saved=9)(broken)
    assert command("verify", broken) == 1
    assert command("verify") == 2
    assert command("verify", killed, "--only", "no_such_rule") == 2
    assert command("verify", broken.parent / "nowhere") == 3
    assert command("verify", broken.parent / "nowhere", "--json") == 3
    assert command.document["error"]["kind"] == "unreadable"


def test_a_folder_without_runs_is_no_success(command: Command, tmp_path: Path) -> None:
    """A pipeline that checks nothing must not pass."""
    assert command("verify", tmp_path) == 3
    assert "no run directory" in command.err


def test_rules_are_listed(command: Command) -> None:
    """--rules needs no path."""
    assert command("verify", "--rules") == 0 and "attempt_beyond_k" in command.out
    assert command("verify", "--rules", "--json") == 0 and len(command.document["rules"]) > 100


def test_only_ignore_and_max_findings(command: Command, runs_root: Path) -> None:
    """What is left out of the list is still counted, what isn't asked for is not."""
    killed = runs_root / RUNS["r_kill_mid"]
    command("verify", killed, "--json", "--only", "task_in_flight")
    assert {finding["code"] for finding in command.document["findings"]} == {"task_in_flight"}
    command("verify", killed, "--json", "--ignore", "task_in_flight,unsealed")
    assert {finding["code"] for finding in command.document["findings"]} == {"no_terminal_event", "task_left_running"}
    command("verify", killed, "--json", "--max-findings", 2)
    assert len(command.document["findings"]) == 2 and command.document["not_listed"] == 12
    assert command.document["severities"] == {"error": 0, "warning": 13, "info": 1}


def test_since_leaves_out_runs_that_have_not_changed(command: Command, run_dir: Callable[[str], Path]) -> None:
    """By the times of a run's own files."""
    old, new = run_dir("r_ok"), run_dir("r_retry")
    for path in old.iterdir():
        os.utime(path, (1_000_000, 1_000_000), follow_symlinks=False)
    assert command("verify", old.parent, "--json", "--since", "2001-01-01") == 0
    assert command.document["runs"] == 1
    assert {finding["run_key"] for finding in command.document["findings"]} == {new.name}


def test_a_baseline_lets_known_findings_pass_and_no_others(
    command: Command, run_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """A finding that stands twice is known twice; a new one fails again."""
    run, baseline = run_dir("r_ok"), tmp_path / "known.jsonl"
    breaking.repeat("attempt_started")(run)
    assert command("verify", run, "--write-baseline", baseline) == 1
    assert command("verify", run, "--baseline", baseline, "--json") == 0
    assert command.document["findings"] == [] and command.document["known"] == 2
    breaking.edit_progress(partials_saved=9)(run)
    assert command("verify", run, "--baseline", baseline, "--json") == 1
    assert {finding["code"] for finding in command.document["findings"]} == {"progress_drift", "progress_ahead"}
    baseline.write_text("no finding\n")
    assert command("verify", run, "--baseline", baseline) == 3


def test_sarif_and_junit_hold_every_finding(command: Command, run_dir: Callable[[str], Path]) -> None:
    """Both can be parsed, whatever stands in a record."""
    run = run_dir("r_ok")
    breaking.repeat("partial_saved", task_id="<&\x1b[31m]]>\x00 \ud800")(run)
    assert command("verify", run, "--format", "sarif") == 1
    log = json.loads(command.out)
    results = log["runs"][0]["results"]
    assert log["version"] == "2.1.0" and "task_not_started" in {result["ruleId"] for result in results}
    assert all(result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results)
    assert command("verify", run, "--format", "junit") == 1
    suite = ET.fromstring(command.out)
    assert len(suite.findall("testcase")) == len(results) and len(suite.findall(".//failure")) == 1


def test_text_from_records_is_made_harmless(command: Command, run_dir: Callable[[str], Path]) -> None:
    """No control character of a record reaches the terminal."""
    run = run_dir("r_ok")
    breaking.repeat("partial_saved", task_id="\x1b]0;owned\x07\u202ex")(run)
    command("verify", run)
    assert "\x1b" not in command.out and "\u202e" not in command.out and "\\x1b" in command.out


def test_several_processes_say_the_same(runs_root: Path) -> None:
    """The same reports in the same order."""
    assert list(verify_paths([runs_root], processes=2)) == list(verify_paths([runs_root]))


def test_a_run_named_twice_is_checked_once(runs_root: Path) -> None:
    """By its real path."""
    run = runs_root / RUNS["r_ok"]
    assert len(list(verify_paths([run, run, run.parent / ".." / run.parent.name / run.name]))) == 1
    with pytest.raises(InputError):
        list(verify_paths([run, run / "nowhere"]))


def test_a_task_in_flight_is_placed_at_its_last_line(runs_root: Path) -> None:
    """Line, offset and length are those of the last thing that the stream says of it."""
    run = runs_root / RUNS["r_kill_mid"]
    content = (run / "progress.jsonl").read_bytes()
    events = breaking.events_of(run)
    for finding in verify_run(RunDir(run, "r")).findings:
        if finding.code == "task_in_flight":
            assert finding.offset is not None and finding.length is not None and finding.line is not None
            last = max(n for n, event in enumerate(events) if event["task_id"] == finding.task_id)
            assert json.loads(content[finding.offset : finding.offset + finding.length]) == events[last]
            assert finding.line == last + 1


# -- what it survives


def test_a_run_with_only_run_info_and_log_is_answered(command: Command, run_dir: Callable[[str], Path]) -> None:
    """The request failed before its first event."""
    run = run_dir("p_load")
    for name in ("progress.jsonl", "progress.json"):
        (run / name).unlink()
    assert command("verify", run, "--json") == 0
    assert {finding["code"] for finding in command.document["findings"]} == {"stream_missing"}


@pytest.mark.parametrize("name", ["progress.jsonl", "progress.json", "run_info.json", "params.json", "metrics.json"])
@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"[1]", b'{"a":', b"\xff\xfe", b"[" * 100_000, b"null\n"])
def test_damaged_files_never_stop_it(name: str, content: bytes, run_dir: Callable[[str], Path]) -> None:
    """Each gets a finding of its own file; the rest of the run is checked all the same."""
    run = run_dir("r_ok")
    (run / name).write_bytes(content)
    counts = one(run)
    assert set(counts) - {"unsealed"}


def test_damaged_runs_do_not_stop_the_others(command: Command, run_dir: Callable[[str], Path]) -> None:
    """One run's stream is a folder, another one's files are FIFOs; the third is calm."""
    first, second, third = run_dir("r_ok"), run_dir("r_retry"), run_dir("r_odd")
    breaking.as_directory_of(first, "progress.jsonl")
    for name in ("progress.jsonl", "run_info.json", "params.json", "run.log"):
        (second / name).unlink()
        os.mkfifo(second / name)
    assert command("verify", third.parent, "--json") == 1
    assert command.document["runs"] == 3
    bad = {finding["run_key"] for finding in command.document["findings"] if finding["severity"] == "error"}
    assert bad == {first.name, second.name}


def test_a_fault_of_our_own_stops_no_other_run(
    command: Command, run_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes a finding of the run that it met."""
    first, second = run_dir("r_ok"), run_dir("r_retry")

    def fail(*arguments: object, **options: object) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr("eventstore.operations.verify.verify.check_files", fail)
    assert command("verify", first.parent, "--json", "--jobs", 1) == 1
    said = [finding for finding in command.document["findings"] if finding["message"].startswith(NOT_TO_THE_END)]
    assert {finding["run_id"] for finding in said} == {first.name, second.name} and command.document["runs"] == 2


@pytest.mark.parametrize("value", [None, 7, "x", [1], {"k": "x"}, True, 1e300, -1, 10**400, float("nan")])
def test_odd_values_in_files_are_findings_not_tracebacks(value: object, run_dir: Callable[[str], Path]) -> None:
    """Every member of every small file, one after the other, given a value of another kind."""
    run = run_dir("r_ok")
    for name in ("run_info.json", "progress.json", "params.json", "metrics.json"):
        original = (run / name).read_text()
        for member in json.loads(original):
            (run / name).write_text(json.dumps({**json.loads(original), member: value}))
            one(run)
        (run / name).write_text(original)
    assert one(run) == {"unsealed": 1}


def test_odd_values_in_requests_and_details_are_survived(run_dir: Callable[[str], Path]) -> None:
    """Sections of the request, of task.json, of results and of checkpoints."""
    run = run_dir("r_retry2")
    files = [run / "run_info.json", *sorted(run.glob("details/*/*/task.json"))[:1]]
    files += [path for name in ("result", "checkpoint") for path in sorted(run.glob(f"details/*/*/*/{name}.json"))[:1]]
    for path in files:
        original = path.read_text()
        for member, section in json.loads(original).items():
            for inner in section if isinstance(section, dict) else ():
                for value in (None, [1], "x", -3, {"y": 1}):
                    changed = json.loads(original)
                    changed[member][inner] = value
                    path.write_text(json.dumps(changed))
                    one(run)
        path.write_text(original)
    assert one(run) == {"unsealed": 1}


@pytest.mark.parametrize("event", ["run_started", "task_started", "phase_changed", "attempt_finished", "run_finished"])
@pytest.mark.parametrize("value", [10**400, -1, 0, float("nan"), float("-inf"), 1e300, 2**70])
def test_odd_times_are_findings_not_tracebacks(event: str, value: float, run_dir: Callable[[str], Path]) -> None:
    """First, last and in between."""
    run = run_dir("r_ok")
    breaking.alter(event, timestamp=value)(run)
    assert "odd_timestamp" in one(run)


def test_a_live_run_is_called_live_and_not_dead(run_dir: Callable[[str], Path]) -> None:
    """Open tasks and a snapshot that is behind are how a run at work looks."""
    run = run_dir("r_kill_mid")
    breaking.hold_stream_open(run)
    try:
        assert one(run) == {"unsealed": 1, "run_live": 1}
    finally:
        breaking.release_held()


def test_every_cut_of_a_stream_gives_the_right_verdict(run_dir: Callable[[str], Path]) -> None:
    """At every line's end and inside every line: torn or not, and never more than what was lost explains."""
    run = run_dir("r_ok")
    content = (run / "progress.jsonl").read_bytes()
    ends = [position + 1 for position, byte in enumerate(content) if byte == 10]
    for end in ends:
        for cut in (end - 1, end, end + 1):
            (run / "progress.jsonl").write_bytes(content[:cut])
            counts = one(run, secrets="none")
            assert ("torn_tail" in counts) == (cut not in ends and cut < len(content))
            assert ("no_terminal_event" in counts) == (ends[0] <= cut < len(content))
            assert "corrupt_line" not in counts


def test_memory_is_bounded_by_findings_kept(tmp_path: Path) -> None:
    """A stream in which every line is wrong lists a thousand findings of a code and counts all."""
    run = tmp_path / "r"
    run.mkdir()
    (run / "progress.jsonl").write_bytes(b"".join(sealed_stream(5000)))
    report = verify_run(RunDir(run, "r"))
    assert report.counts["task_not_started"] == 5000
    assert sum(finding.code == "task_not_started" for finding in report.findings) == 1000


def test_nothing_is_written(run_dir: Callable[[str], Path]) -> None:
    """A directory that may not be written to gives the same answer, and nothing in it changes."""
    run = run_dir("r_kill_mid")
    expected = one(run)
    before = {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in run.rglob("*")}
    run.chmod(0o500)
    try:
        assert one(run) == expected
    finally:
        run.chmod(0o700)
    assert before == {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in run.rglob("*")}


def test_credentials_are_found_where_they_are_looked_for(run_dir: Callable[[str], Path]) -> None:
    """Records by default, every file when asked, nothing when not; the value is never in a finding."""
    token = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
    run = run_dir("r_ok")
    breaking.repeat("phase_changed", payload={"error": f"401 for {token}"})(run)
    breaking.edit_info(note=f"see {token}")(run)
    (breaking.attempt_dir(run) / "note.md").write_text(f"a\nb\nkey {token}\n")
    report = verify_run(RunDir(run, run.name))
    found = [finding for finding in report.findings if finding.code == "secret"]
    assert {Path(finding.file).name for finding in found} == {"progress.jsonl", "run_info.json"}
    everywhere = verify_run(RunDir(run, run.name), Options(secrets="all"))
    note = next(finding for finding in everywhere.findings if finding.file.endswith("note.md"))
    assert (note.line, note.offset) == (3, 8)
    assert "secret" not in one(run, secrets="none")
    assert token not in repr([finding.message for finding in everywhere.findings])


def test_the_command_looks_for_credentials_where_it_is_asked_to(
    run_dir: Callable[[str], Path], command: Command
) -> None:
    """`--secrets` reaches the rules: nowhere, in the records, in every file."""
    run = run_dir("r_ok")
    (breaking.attempt_dir(run) / "note.md").write_text("key ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8\n")
    for where, expected in (("none", 0), ("records", 0), ("all", 1)):
        command("verify", run, "--secrets", where, "--json")
        assert sum(finding["code"] == "secret" for finding in command.document["findings"]) == expected, where


def test_it_can_be_called_from_a_shell(runs_root: Path) -> None:
    """As a process of its own, with a pipe for stdout: no colour, no bar."""
    script = "from cli.main import main; main()"
    path = str(runs_root / RUNS["r_ok"])
    done = subprocess.run([sys.executable, "-c", script, "verify", path], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.endswith("1 info\n")


CANARY = "ghp_" + "Q7w8E9r0T1y2U3i4O5p6A7s8D9f0G1h2J3k4"
ANNOUNCED = [
    {"argv": ["tool", "--api-key", "hunter2-of-mine"]},
    {"header": ["Authorization", "hunter2-of-mine"]},
    {"passwords": ["hunter2-of-mine", "letmein-again"]},
    {"variables": [{"name": "DB_PASSWORD", "value": "hunter2-of-mine"}]},
]


def with_payload(run: Path, event: str, payload: dict[str, Any], *, first: bool = False) -> None:
    """Give the first record of a kind a payload, which then may stand at the front of its line."""
    lines = (run / "progress.jsonl").read_bytes().splitlines(keepends=True)
    index = next(i for i, line in enumerate(lines) if json.loads(line)["event"] == event)
    members = json.loads(lines[index]) | {"payload": payload}
    if first:
        members = {"orchestration_id": members.pop("orchestration_id"), **members}
    lines[index] = json.dumps(members).encode() + b"\n"
    (run / "progress.jsonl").write_bytes(b"".join(lines))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("event", sorted(SPECIFIED_EVENTS))
def test_credentials_are_found_in_payloads_of_every_kind(
    run_dir: Callable[[str], Path], event: str, first: bool
) -> None:
    """Whatever the event, and whatever the order of its members."""
    run = run_dir("r_retry")
    if event.encode() not in (run / "progress.jsonl").read_bytes():
        line = json.loads((run / "progress.jsonl").read_bytes().splitlines()[-1]) | {"event": event}
        with (run / "progress.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")
    with_payload(run, event, {"note": f"key {CANARY}"}, first=first)
    assert one(run)["secret"] == 1


@pytest.mark.parametrize("payload", ANNOUNCED)
def test_what_writing_masks_because_of_what_stands_before_it_is_reported(
    run_dir: Callable[[str], Path], payload: dict[str, Any]
) -> None:
    """Options and their values, headers, lists of secrets, names and values: in payloads and in small files."""
    run = run_dir("r_ok")
    assert "secret" not in one(run)
    with_payload(run, "phase_changed", payload)
    assert one(run)["secret"] == 1
    info = json.loads((run / "params.json").read_text())
    (run / "params.json").write_text(json.dumps({**info, "extra": payload}))
    assert one(run)["secret"] == 2
