"""Diagnose: the first cause of runs that failed for a known reason, its evidence, and what is honest about it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eventstore.format.events import Json
from eventstore.operations.diagnose.diagnose import diagnose_run
from projections.diagnose.causes import BLAMES, CAUSES
from tests.tools import interrupting
from tests.tools.commands import Command
from tests.tools.failures import PLANTED, Copy, events_of, finish, log, plant, write_events
from tests.tools.recorded import RUNS, unpack
from tests.tools.streams import plain_line

ROOT = Path(__file__).parents[2]
FINE = [name for name in RUNS if name not in PLANTED]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cause_is_the_first_one_named(name: str, run_dir: Copy, command: Command) -> None:
    """`causes[0]` names it by code and in words, with evidence that stands where it says; the exit code is 1."""
    outcome, code, words = PLANTED[name]
    run = plant(name, run_dir)
    assert command("diagnose", run, "--json") == 1
    report = command.document
    first = report["causes"][0]
    assert (report["outcome"], first["code"]) == (outcome, code)
    assert words.lower() in first["message"].lower()
    untold = code == "stopped_by_user" and first["certainty"] == "inferred"
    assert first["blame"] == ("unknown" if untold else CAUSES[code].blame)
    assert first["certainty"] in ("certain", "inferred")
    assert first["evidence"] and report["next_steps"]
    for cause in report["causes"]:
        for evidence in cause["evidence"]:
            check_evidence(run, evidence)


def check_evidence(run: Path, evidence: dict[str, object]) -> None:
    """The file is there, it has the line, and the line is the record with the seq that was given."""
    path = run / str(evidence["file"])
    assert path.exists() or "no stream" in str(evidence["text"]) or "missing: " in str(evidence["text"])
    if evidence["line"] is None:
        return
    line = path.read_bytes().split(b"\n")[int(str(evidence["line"])) - 1]
    assert line
    if evidence["seq"] is not None and evidence["task_id"] is not None:
        assert json.loads(line)["task_id"] == evidence["task_id"]


def test_at_least_25_causes_are_planted_and_five_are_unknown() -> None:
    """The set is as large as promised; unknown is an answer where the records hold no evidence."""
    codes = [code for _, code, _ in PLANTED.values()]
    assert len(codes) >= 25 and codes.count("unknown") == 5 and len(set(codes)) >= 25


@pytest.mark.parametrize("name", FINE)
def test_a_run_without_errors_has_no_cause(name: str, run_dir: Copy, command: Command) -> None:
    """Outcome completed, no cause, exit code 0; warnings and retries that helped are no cause."""
    assert command("diagnose", run_dir(name), "--json") == 0
    assert command.document["outcome"] == "completed" and command.document["causes"] == []


def test_the_big_run(big_run: Path, command: Command) -> None:
    """Without details the cause of its errors is inferred from the pattern that its retries matched."""
    assert command("diagnose", big_run, "--json") == 1
    first = command.document["causes"][0]
    assert first["code"] == "model_refused_request" and first["certainty"] == "inferred" and first["tasks"] == 46
    assert command.document["reuse"]["keeps"] is None


def test_every_code_is_documented_and_blames_somebody() -> None:
    """docs/diagnose.md lists the closed set of codes, each with its blame."""
    whole = (ROOT / "docs/diagnose.md").read_text()
    text = whole.partition("## Causes")[2]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    documented = {row[1].strip(" `"): row[2].strip() for row in rows}
    assert documented == {code: cause.blame for code, cause in CAUSES.items()}
    assert {cause.blame for cause in CAUSES.values()} == set(BLAMES)


# -- what was in flight, and what is left


def test_a_killed_run_tells_what_was_in_flight(run_dir: Copy) -> None:
    """Eleven attempts of six tasks, the oldest first, each with its phase, for how long, and what siblings took."""
    report = diagnose_run(run_dir("r_kill_mid"))
    flights = report["in_flight"]
    assert sorted({flight["task_id"] for flight in flights}) == [f"arith-{n:03d}" for n in range(9, 15)]
    assert len(flights) == 11 and flights == sorted(flights, key=lambda flight: -flight["duration_seconds"])
    assert flights[0]["phase"] == "retry_wait" and flights[0]["attempt"] == 2 and flights[0]["phase_seconds"] > 0
    assert report["results"] | {"states": None} == {
        "complete": 9,
        "partial": 6,
        "missing": 45,
        "stored": True,
        "states": None,
    }
    assert report["score"]["usable"] is False and report["certainty"] == "inferred"


@pytest.mark.parametrize("odd", [{"retry_pattern_list": ["("]}, {"attempts": {"k": 0}}])
def test_a_request_that_no_new_run_could_repeat_leaves_the_rest(odd: Json, run_dir: Copy) -> None:
    """What reuse would keep is not known then; everything else is diagnosed as ever."""
    run = run_dir("p_429")
    info = json.loads((run / "run_info.json").read_text())
    info["request"]["execution"] |= odd
    (run / "run_info.json").write_text(json.dumps(info))
    report = diagnose_run(run)
    assert report["causes"][0]["code"] == "model_rate_limited"
    assert report["reuse"]["keeps"] is None and report["results"]["stored"]


def test_retries_tell_what_they_burnt_and_bought(run_dir: Copy) -> None:
    """Count, seconds thrown away, reasons, and how many of those tasks ended well."""
    retries = diagnose_run(run_dir("r_retry2"))["retries"]
    assert retries["count"] == 10 and retries["discarded_seconds"] > 0
    assert {(row["stage"], row["matched_pattern"]) for row in retries["reasons"]} == {
        ("prepare_task", "fatal"),
        ("attempt", "400|bad request"),
    }
    assert retries["recovered_tasks"] == retries["tasks"]


def test_open_environments_are_listed(run_dir: Copy, command: Command) -> None:
    """A record under .env-resources is an environment whose release is not recorded."""
    run = run_dir("r_kill_mid")
    (run / ".env-resources").mkdir()
    record = {"provider": "docker", "state": "open", "task_id": "arith-013", "attempt": 1}
    (run / ".env-resources/5d2c.json").write_text(json.dumps(record))
    assert command("diagnose", run) == 1
    assert "open environment: docker (open) of task arith-013: .env-resources/5d2c.json" in command.out


def test_secrets_are_found_and_not_shown(run_dir: Copy, command: Command) -> None:
    """The place and the kind are told; the text is masked in every form."""
    run = finish(run_dir("r_ok"), "failed", "RuntimeError: https://user:hunter2secret@proxy.local refused")
    log(run, "14:30:24 ERROR    x   RuntimeError at https://user:hunter2secret@proxy.local")
    for form in ([], ["--json"], ["--format", "markdown"]):
        assert command("diagnose", run, *form) == 1
        assert "hunter2secret" not in command.out + command.err
    assert diagnose_run(run)["secrets"]


def test_what_a_hostile_record_says_reaches_nobody_raw(run_dir: Copy, command: Command) -> None:
    """Escape codes, markup and backticks in an error stay visible text in each form."""
    run = finish(run_dir("r_ok"), "failed", "\x1b[2J``` <script>alert(1)</script>\n# heading | \u202e")
    for form in ([], ["--json"], ["--format", "markdown"]):
        assert command("diagnose", run, *form) == 1
        assert not set("\x1b\u202e") & set(command.out)
    assert command("diagnose", run, "--format", "markdown") == 1
    assert not any(line.startswith("# heading") for line in command.out.splitlines())


def test_unreadable_parts_are_no_reason_to_stop(run_dir: Copy, command: Command) -> None:
    """Broken small files, a log that is a folder, details with rubbish: told, and the rest is diagnosed."""
    run = run_dir("p_429")
    (run / "progress.json").write_text("{")
    (run / "run.log").unlink()
    (run / "run.log").mkdir()
    result = next(run.glob("details/fatal/*/attempt-1/result.json"))
    result.write_bytes(b"\xff\xfe")
    assert command("diagnose", run, "--json") == 1
    assert command.document["causes"][0]["code"] == "model_rate_limited"
    assert command.document["problems"] and command.document["log"]["problem"]
    assert command("diagnose", run / "nothing", "--json") == 3 and "error" in command.document


def test_text_and_markdown_say_the_same(run_dir: Copy, command: Command) -> None:
    """Both name the outcome, the first cause with its certainty and blame, and the commands to type next."""
    run = run_dir("p_429")
    for form in ("text", "markdown"):
        assert command("diagnose", run, "--format", form) == 1
        for words in ("failed", "model_rate_limited", "certain; model", "HTTP 429", "compass-es task", "12 of 12"):
            assert words in command.out.replace("`", "")


def test_a_run_that_was_killed_a_moment_ago_may_still_be_running(tmp_path: Path, command: Command) -> None:
    """Without a lock youth speaks for a writer, and nothing else does: running, by inference, with both facts told."""
    lines = [plain_line(n, timestamp=time.time() - 3 + n, task_id="t") for n in range(3)]
    (tmp_path / "progress.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert command("diagnose", tmp_path, "--json") == 0
    report = command.document
    assert (report["outcome"], report["certainty"]) == ("running", "inferred")
    assert "no process of this host" in report["life"]["evidence"][1]
    with open(tmp_path / "progress.jsonl", "ab") as held:
        script = "import sys, time; sys.stdin.readline()"
        holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, pass_fds=[held.fileno()])
        assert command("diagnose", tmp_path, "--json") == 0
        assert command.document["certainty"] == "certain"
        holder.communicate(b"\n", timeout=60)


# -- AgentCompass 1.0.1, driven into real failures

DRIVEN = {
    "killed": ("died", "process_died"),
    "terminated": ("died", "process_died"),
    "interrupted": ("cancelled", "stopped_by_user"),
    "timeout": ("timed_out", "deadline_exceeded"),
    "poison": ("failed", "poisoned_task"),
    "prepare_poison": ("failed", "poisoned_task"),
    "harness": ("failed", "harness_failed"),
    "oom": ("failed", "out_of_memory"),
    "enospc": ("failed", "disk_full"),
    "sandbox_fail": ("failed", "sandbox_failed"),
    "sandbox_hang": ("timed_out", "sandbox_never_opened"),
    "down": ("completed", "model_unreachable"),
    "ok": ("completed", None),
}


@pytest.fixture(scope="session")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of tests/data/failures.tar.xz, for reading only."""
    return unpack("failures", tmp_path_factory.mktemp("driven"))


@pytest.mark.parametrize("name", DRIVEN)
def test_a_real_failure_of_agentcompass_is_named(name: str, driven: Path, command: Command) -> None:
    """What really happened to the run is its first cause, with evidence where it says."""
    outcome, code = DRIVEN[name]
    assert command("diagnose", driven / name, "--json") == (0 if code is None else 1)
    report = command.document
    assert (report["outcome"], [c["code"] for c in report["causes"][:1]]) == (outcome, [code] if code else [])
    for cause in report["causes"]:
        for evidence in cause["evidence"]:
            check_evidence(driven / name, evidence)
    assert command("task", driven / name, "sum 000/é") == 0 and command("watch", driven / name, "--once") == 0


# -- our own recorder, driven into real failures

RECORDING = """
import os, signal, sys, time
from eventstore.format import events as ev
from eventstore.recording.recorder import RunRecorder
request = {name: {"id": name} for name in ("model", "benchmark", "harness", "environment")}
with RunRecorder.create(sys.argv[1], request=request) as run:
    run.append(ev.TasksLoaded(payload=ev.TasksLoadedPayload(total_tasks=2)))
    run.append(ev.TaskStarted(task_id="t"))
    run.append(ev.PhaseChanged(task_id="t", attempt=1, phase="run_harness"))
    run.sync()
    exec(sys.argv[2])
"""
REAL = {
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "died", "process_died", "inferred"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", "died", "process_died", "inferred"),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", "cancelled", "stopped_by_user", "certain"),
    "memory": ("bytearray(1 << 62)", "failed", "out_of_memory", "certain"),
    "disk": ("open('/dev/full', 'wb', buffering=0).write(b'x')", "failed", "disk_full", "certain"),
    "no finish": ("pass", "left", "left_unfinished", "certain"),
    "bug": ("1 / 0", "failed", "unknown", "inferred"),
}


@pytest.mark.parametrize("name", REAL)
def test_a_recorder_that_really_failed(name: str, tmp_path: Path, command: Command) -> None:
    """Killed, terminated, interrupted, out of memory, disk full, a bug: what the process left is read right."""
    code, outcome, cause, certainty = REAL[name]
    if name == "disk" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    argv = [sys.executable, "-c", RECORDING, str(tmp_path / "run"), code]
    interrupting.start(argv, stderr=subprocess.DEVNULL, cwd=ROOT).wait()
    assert command("diagnose", tmp_path / "run", "--json") == 1
    report = command.document
    first = report["causes"][0]
    assert (report["outcome"], first["code"], first["certainty"]) == (outcome, cause, certainty)
    assert [flight["task_id"] for flight in report["in_flight"]] == ["t"]


def test_records_that_were_promised_and_are_gone(tmp_path: Path, command: Command) -> None:
    """The witness knows of more bytes than the stream has: the loss is named, beside the death."""
    subprocess.run([sys.executable, "-c", RECORDING, str(tmp_path), REAL["SIGKILL"][0]], capture_output=True, cwd=ROOT)
    stream = tmp_path / "progress.jsonl"
    stream.write_bytes(b"".join(stream.read_bytes().splitlines(keepends=True)[:2]))
    assert command("diagnose", tmp_path, "--json") == 1
    assert "records_lost" in [cause["code"] for cause in command.document["causes"]]
    assert any("compass-es repair" in step for step in command.document["next_steps"])


def test_odd_names_and_values_do_no_harm(run_dir: Copy, command: Command) -> None:
    """A lone surrogate as the name of a payload member, plans and issues of foreign shapes."""
    run = run_dir("p_429")
    events = events_of(run)
    for event in events:
        if event["event"] in ("run_finished", "task_finished", "tasks_loaded"):
            event["payload"]["\ud800"] = [None, {"a": float("nan")}]
        if event["event"] == "execution_plan_resolved":
            event["payload"] = {"applied_recipes": 1.5, "environment": [], "run_network_policy": "x"}
    write_events(run, events)
    for arguments in (["diagnose", run], ["task", run, "arith-001"], ["diff", run, run], ["watch", run, "--once"]):
        assert command(*arguments) in (0, 1) and command.out
