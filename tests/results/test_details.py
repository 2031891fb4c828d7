"""Task results: reading them without trust, and publishing them so that no crash leaves half of one."""

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from eventstore.errors import DamagedError, OutputError, RefusedError, UsageError
from eventstore.format.events import PartialSaved, TaskStarted
from eventstore.operations.repair.results import recover_results
from eventstore.recording.recorder import RunRecorder
from eventstore.results.checkpoint_store import read_checkpoint, update_section
from eventstore.results.intents import exchange
from eventstore.results.result import read_result, shape_faults
from eventstore.results.schema import AttemptResult
from eventstore.results.store import RetryDetail, TaskStore
from eventstore.results.task_dirs import (
    Issue,
    find_retry_detail,
    find_task,
    read_request,
    stored_severities,
    task_directory_name,
    task_dirs,
)
from tests.tools.dying import deaths
from tests.tools.faults import FaultyFiles
from tests.tools.recorded import RUNS

PLAN = {"k": 2, "strategy": "avg"}
FATAL = Issue("fatal", "setup", "setup_failed", "no disk")
ERROR = Issue("error", "run", "model_failed", "HTTP 400")


def result(answer: str = "7", *issues: Issue, folder: str = "") -> AttemptResult:
    manifest = {"schema_version": 1, "directory": folder, "complete": True, "entries": []}
    artifacts = {"declared_artifacts": manifest} if folder else {}
    status = "run_error" if issues else "completed"
    return AttemptResult(
        status=status, metrics={"correct": not issues}, final_answer=answer, issues=issues, artifacts=artifacts
    )


def publish(store: TaskStore, task_id: str = "t", *attempts: AttemptResult, **changes: Any) -> Path:
    given = dict(enumerate(attempts or (result(),), 1))
    return store.publish(task_id, category=None, ground_truth="7", attempt_plan=PLAN, attempts=given, **changes)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


# --- reading


@pytest.mark.parametrize("name", RUNS)
def test_every_recorded_run_is_read_without_a_fault(runs_root: Path, name: str) -> None:
    """Directories that AgentCompass 1.0.1 wrote, killed runs included, have no problem for the readers."""
    run_dir = runs_root / RUNS[name]
    problems: list[tuple[str, str]] = []
    for task in task_dirs(run_dir, lambda path, words: problems.append((path, words))):
        assert task.problem is None and task.name_matches and not task.problems, task.problems
        for attempt in task.attempts.values():
            found = attempt.read_result("final_answer")
            assert found.problem is None and not found.faults and found.classified
            assert not task.published or not shape_faults(attempt.path / "result.json")
            if found.exists:
                stored = json.loads((attempt.path / "result.json").read_text())
                assert found.status == stored["status"] and found.metrics == stored["metrics"]
                assert (
                    found.retry_count == stored["retry_count"]
                    and found.members["final_answer"] == stored["final_answer"]
                )
                assert [vars_of(issue) for issue in found.issues] == stored["issues"]
            for retry in attempt.read_retries():
                assert retry.problem is None and (retry.task_id, retry.attempt) == (task.task_id, attempt.number)
    assert problems == []


def vars_of(issue: Issue) -> dict[str, str]:
    return {name: getattr(issue, name) for name in issue.__struct_fields__}


@pytest.mark.parametrize(
    "name", [name for name in RUNS if name not in ("r_kill_early", "p_load", "r_evalerr_reanalysis")]
)
def test_severities_of_stored_tasks_equal_those_of_the_stream(runs_root: Path, name: str) -> None:
    """What results say of a task is what its `task_finished`, or `reuse_loaded`, has counted."""
    run_dir = runs_root / RUNS[name]
    stored = stored_severities(run_dir)
    lines = [json.loads(line) for line in (run_dir / "progress.jsonl").read_text().splitlines()]
    saved = {line["task_id"] for line in lines if line["event"] == "partial_saved"}
    told = {
        line["task_id"]: line["payload"]["severity"]
        for line in lines
        if line["event"] == "task_finished" and line["task_id"] in saved
    }
    counts = next((line["payload"]["reused_severity_counts"] for line in lines if line["event"] == "reuse_loaded"), {})
    assert {task_id: stored[task_id] for task_id in told} == told
    reused = [severity for task_id, severity in stored.items() if task_id not in saved and severity]
    assert sorted(reused) == sorted(severity for severity, count in counts.items() for _ in range(count))


def test_a_retry_detail_is_found_where_the_task_stands_now(runs_root: Path) -> None:
    """The path in `attempt_retry` dangles once the task has moved; its file's name is enough."""
    run_dir = runs_root / RUNS["r_retry2"]
    lines = [json.loads(line) for line in (run_dir / "progress.jsonl").read_text().splitlines()]
    retries = [line for line in lines if line["event"] == "attempt_retry"]
    assert retries
    for line in retries:
        found = find_retry_detail(run_dir, line["task_id"], line["payload"]["retry_detail"])
        assert found is not None and found.is_file() and found.is_relative_to(run_dir)
    assert find_retry_detail(run_dir, retries[0]["task_id"], "../../../etc/passwd") is None


def test_what_cannot_be_read_becomes_a_problem_in_words(tmp_path: Path) -> None:
    """Links, special files, garbage and other people's schemas never raise."""
    details = tmp_path / "details"
    for name in ("torn", "nul", "schema", "no-index", "list"):
        (details / "normal" / name).mkdir(parents=True)
    (details / "normal" / "torn" / "task.json").write_text('{"schema_version": "agentcompass.ta')
    (details / "normal" / "nul" / "task.json").write_bytes(b"\0" * 400)
    (details / "normal" / "schema" / "task.json").write_text('{"schema_version": "other.v1", "task_id": "x"}')
    (details / "normal" / "no-index" / "task.json").write_text(
        '{"schema_version": "agentcompass.task.v3", "task_id": "x"}'
    )
    (details / "normal" / "list" / "task.json").write_text("[]")
    (details / "normal" / "empty").mkdir()
    (details / "normal" / "elsewhere").symlink_to("/etc")
    (details / "normal" / "note.txt").write_text("hello")
    os.mkfifo(details / "fifo")
    told: list[str] = []
    found = {task.path.name: task for task in task_dirs(tmp_path, lambda path, words: told.append(f"{path} {words}"))}
    assert set(found) == {"torn", "nul", "schema", "no-index", "list", "empty"}
    assert all(task.problem for task in found.values())
    assert "byte 33" in (found["torn"].problem or "") or "Unterminated" in (found["torn"].problem or "")
    assert "400 NUL bytes" in (found["nul"].problem or "") and "missing" in (found["empty"].problem or "")
    assert any("elsewhere" in line for line in told) and any("fifo" in line for line in told)
    assert any("note.txt" in line for line in told)


def test_odd_results_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    """NaN, wrong types, unknown severities: values where there are any, faults in words."""
    path = tmp_path / "result.json"
    path.write_text(
        '{"status": "exploded", "metrics": {"a": NaN, "b": "x"}, "retry_count": -1,'
        ' "issues": [7, {"severity": "dire", "phase": "run", "code": "c", "message": null}]}'
    )
    found = read_result(path)
    assert found.problem is None and found.status == "exploded" and found.retry_count == 0
    assert found.metrics["a"] != found.metrics["a"] and found.issues == [Issue("dire", "run", "c", "")]
    assert len(found.faults) == 6
    path.write_bytes(b"\xff\xfe")
    assert "UTF-8" in (read_result(path).problem or "")
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert read_result(path).problem == "is a symbolic link"
    path.unlink()
    assert not read_result(path).exists
    with socket.socket(socket.AF_UNIX) as server, chdir(path.parent):
        server.bind(path.name)  # a socket's whole path may have 107 bytes only
        assert read_result(path).problem


OLDER = [
    ({"status": "completed", "error": ""}, [], True),
    ({"status": "cancelled"}, [], True),
    ({"status": "run_error", "error": "boom"}, [], False),
    ({"status": "completed", "error": "boom"}, [], False),
    (
        {
            "status": "run_error",
            "error": "x",
            "artifacts": {"declared_artifacts": {"complete": False, "entries": [{"status": "failed"}]}},
        },
        ["fatal"],
        True,
    ),
    ({"status": "eval_error", "meta": {"benchmark": {"scoring": {"error": "e", "correct": False}}}}, ["fatal"], True),
    (
        {"status": "eval_error", "meta": {"benchmark": {"scoring": {"error": "e", "correct": False, "score": 1}}}},
        [],
        False,
    ),
]


@pytest.mark.parametrize(("members", "severities", "classified"), OLDER)
def test_an_older_result_is_adapted_and_its_file_left_alone(
    tmp_path: Path, members: dict[str, Any], severities: list[str], classified: bool
) -> None:
    """task.v2 in layout v2: what its structure proves gets an issue, any other failure is unknown."""
    folder = tmp_path / "details" / task_directory_name("t")
    (folder / "attempt-1").mkdir(parents=True)
    index = {"schema_version": "agentcompass.task.v2", "task_id": "t", "attempts": {"1": "attempt-1"}}
    shared = {"category": None, "ground_truth": "7", "attempt_plan": {"k": 1, "strategy": "avg"}}
    (folder / "task.json").write_text(json.dumps(index | shared))
    (folder / "attempt-1" / "result.json").write_text(json.dumps({"metrics": {}, "retry_count": 0} | members))
    before = snapshot(tmp_path)
    (task,) = task_dirs(tmp_path)
    found = task.attempts[1].read_result()
    assert task.state is None and task.published
    assert ([issue.severity for issue in found.issues], found.classified) == (severities, classified)
    assert task.severity == ("unknown" if not classified else severities[0] if severities else "")
    with pytest.raises(RefusedError, match="older schema"):
        publish(TaskStore(tmp_path), "t")
    assert snapshot(tmp_path) == before


def test_the_request_is_read_from_run_info_first_and_filled_in_from_params(tmp_path: Path) -> None:
    """Member by member, but the benchmark's parameters whole; a broken file is a problem in words."""
    request = {"model": {"id": "m", "params": {"a": 1}}, "benchmark": {"id": "b", "params": {"x": 1}}, "execution": {}}
    params = {
        "model": {"id": "other", "params": {"a": 2, "b": 2}},
        "benchmark": {"id": "c", "params": {"y": 2}},
        "execution": {"attempts": {"k": 3, "strategy": "pass"}},
        "output": {"run_id": "r"},
    }
    (tmp_path / "run_info.json").write_text(json.dumps({"request": request}))
    (tmp_path / "params.json").write_text(json.dumps(params))
    found = read_request(tmp_path)
    assert found.request == {
        "model": {"id": "m", "params": {"a": 1, "b": 2}},
        "benchmark": {"id": "b", "params": {"x": 1}},
        "execution": {"attempts": {"k": 3, "strategy": "pass"}},
        "output": {"run_id": "r"},
    }
    assert found.benchmark_id == "b" and found.attempt_plan == {"k": 3, "strategy": "pass"} and not found.problems
    (tmp_path / "run_info.json").write_text("{")
    found = read_request(tmp_path)
    assert found.request == params and found.problems


# --- names


def _hostile_ids(count: int) -> list[str]:
    random_numbers = random.Random(20)
    alphabet = [chr(code) for code in [*range(1, 0x250), 0x202E, 0x2066, 0xFEFF, 0x1F600, 0x10FFFF, 0x4E00, 0xFFFF]]
    ids = {"..", ".", "a/../b", "A", "a", "A\u0308", "\u00c4", "x" * 5000, "'; DROP TABLE tasks; --", "a\0b", "task"}
    while len(ids) < count:
        text = "".join(random_numbers.choices(alphabet, k=random_numbers.randint(1, 60))).strip()
        ids.add(text or "x")
    return sorted(ids)


def test_ten_thousand_hostile_ids_keep_one_directory_each() -> None:
    """Whatever an id holds, its directory's name is plain, not too long, and its own, on any file system."""
    names = [task_directory_name(task_id) for task_id in _hostile_ids(10_000)]
    assert len({name.casefold() for name in names}) == 10_000
    assert all(name.isascii() and len(name) <= 80 + 2 + 64 and not name.startswith(".") for name in names)
    assert not any(set(name) & set("/\\\0 \n") for name in names)


def test_hostile_ids_round_trip_through_publication(tmp_path: Path) -> None:
    """Published under any id, a task is found again under it."""
    ids = _hostile_ids(120)
    store = TaskStore(tmp_path, durable=False)
    for task_id in ids:
        publish(store, task_id, result(task_id))
    assert {task.task_id for task in task_dirs(tmp_path)} == set(ids)
    for task_id in ids:
        task = find_task(tmp_path, task_id)
        assert task is not None and task.attempts[1].read_result("final_answer").members["final_answer"] == task_id
    assert sorted(path.name for path in tmp_path.iterdir()) == ["details"]


@pytest.mark.parametrize("task_id", ["", " ", " t", "t\n", "\u3000t", "\ud800", 7, None])
def test_an_id_that_cannot_be_stored_is_refused(tmp_path: Path, task_id: Any) -> None:
    """White space around it, nothing, or no UTF-8: a clear refusal and nothing on disk."""
    with pytest.raises(UsageError):
        publish(TaskStore(tmp_path), task_id)
    assert list(tmp_path.iterdir()) == []


def test_names_are_those_that_agentcompass_gives(runs_root: Path) -> None:
    """Every recorded task directory, hostile ids included, has the name that is computed here."""
    folders = [path.parent for path in runs_root.rglob("details/*/*/task.json")]
    assert len(folders) > 100
    for folder in folders:
        assert folder.name == task_directory_name(json.loads((folder / "task.json").read_text())["task_id"])


# --- writing


def test_a_published_task_is_moved_to_its_state_and_told(tmp_path: Path) -> None:
    """The highest severity of any attempt decides; `partial_saved` comes when it is durable."""
    told: list[tuple[PartialSaved, bool]] = []

    def append(event: PartialSaved) -> None:
        task = find_task(tmp_path, event.task_id or "")
        told.append((event, task is not None and task.published))

    store = TaskStore(tmp_path, append=append)
    warning = Issue("warning", "cleanup", "c", "m")
    for task_id, attempts, state in (
        ("good", (result(),), "normal"),
        ("warned", (AttemptResult(status="completed", issues=[warning]),), "normal"),
        ("bad", (result(), result("8", ERROR)), "error"),
        ("worse", (result("7", ERROR), result("8", FATAL)), "fatal"),
    ):
        store.begin_attempt(task_id, 1)
        assert publish(store, task_id, *attempts).parent.name == state
    assert [(event.task_id, published) for event, published in told] == [
        (task_id, True) for task_id in ("good", "warned", "bad", "worse")
    ]
    assert stored_severities(tmp_path) == {"good": "", "warned": "warning", "bad": "error", "worse": "fatal"}
    assert not list((tmp_path / "details").glob(".publish*"))


def test_facts_of_the_evaluator_are_never_redacted_and_the_rest_is(tmp_path: Path) -> None:
    """metrics, final_answer and ground_truth stay as they come; credentials elsewhere don't reach the disk."""
    secret = "sk-abcdefghijklmnop0123456789"
    outcome = AttemptResult(
        status="run_error",
        metrics={"api_key": 3, "correct": False},
        final_answer=f"the key is {secret}",
        trajectory={"steps": [{"content": f"Authorization: Bearer {secret}"}]},
        issues=[Issue("error", "run", "c", f"https://user:{secret}@host failed")],
        artifacts={"api_key": secret},
        meta={"harness": {"env": {"A": secret}}},
    )
    store = TaskStore(tmp_path)
    folder = store.publish("t", category=None, ground_truth=secret, attempt_plan=PLAN, attempts={1: outcome})
    stored = json.loads((folder / "attempt-1" / "result.json").read_text())
    assert stored["metrics"] == {"api_key": 3, "correct": False} and stored["final_answer"] == f"the key is {secret}"
    assert json.loads((folder / "task.json").read_text())["ground_truth"] == secret
    rest = {name: value for name, value in stored.items() if name not in ("metrics", "final_answer")}
    assert secret not in json.dumps(rest) and stored["artifacts"]["api_key"] == "********"


@pytest.mark.parametrize(
    "outcome",
    [
        AttemptResult(status="exploded"),
        AttemptResult(status="completed", metrics={"a": float("nan")}),
        AttemptResult(status="completed", metrics={"a": "1"}),
        AttemptResult(status="completed", metrics={" a": 1}),
        AttemptResult(status="completed", issues=[Issue("dire", "run", "c", "m")]),
        AttemptResult(status="completed", issues=[Issue("error", "run", "", "m")]),
        AttemptResult(status="completed", meta={"other": {}}),
        AttemptResult(status="completed", retry_count=-1),
    ],
)
def test_a_result_that_breaks_the_schema_is_refused(tmp_path: Path, outcome: AttemptResult) -> None:
    """Nothing of it reaches the disk."""
    with pytest.raises(UsageError):
        publish(TaskStore(tmp_path), "t", outcome)
    assert list(tmp_path.iterdir()) == []


def test_earlier_outputs_of_an_attempt_that_reruns_go_to_retries(tmp_path: Path) -> None:
    """Result, checkpoint and artifacts move together, and references to them follow; the diagnostics stay beside."""
    store = TaskStore(tmp_path)
    folder = store.begin_attempt("t", 1)
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "out.txt").write_text("first")
    place = folder.relative_to(tmp_path).as_posix()
    discarded = {"status": "run_error", "artifacts": {"declared_artifacts": {"directory": f"{place}/artifacts"}}}
    update_section(folder / "checkpoint.json", "artifact_transfer", {"directory": f"{place}/artifacts"})
    store.save_result("t", 1, result("first", ERROR, folder=f"{place}/artifacts"))
    detail = RetryDetail(retry=1, max_retries=2, stage="a/b", matched_pattern="400", issues=[ERROR])
    diagnostics = store.save_retry("t", 1, detail, discarded)
    again = store.begin_attempt("t", 1)
    assert again == folder and sorted(path.name for path in folder.iterdir()) == ["retries"]
    (task,) = task_dirs(tmp_path)
    (archive,) = task.attempts[1].archives
    assert sorted(path.name for path in archive.iterdir()) == ["artifacts", "checkpoint.json", "result.json"]
    there = f"{archive.relative_to(tmp_path).as_posix()}/artifacts"
    for path in (archive / "result.json", archive / "checkpoint.json", diagnostics):
        assert f'"directory": "{there}"' in path.read_text()
    (retry,) = task.attempts[1].read_retries()
    assert (retry.retry, retry.stage, retry.matched_pattern, retry.issues) == (1, "a/b", "400", [ERROR])
    publish(store, "t", result("second"))
    moved = find_task(tmp_path, "t")
    assert moved is not None and moved.state == "normal"
    assert (
        f'"directory": "{there.replace("running", "normal")}"'
        in (moved.attempts[1].archives[0] / "result.json").read_text()
    )


def test_moving_a_task_changes_its_references_and_nothing_else(tmp_path: Path) -> None:
    """Texts that look like references stay, files without any are not written, artifacts are not looked into."""
    store = TaskStore(tmp_path)
    folder = store.begin_attempt("t", 1)
    place = f"{folder.relative_to(tmp_path).as_posix()}/artifacts"
    text = f'{{"directory": "{place}"}}'
    store.save_result(
        "t", 1, AttemptResult(status="completed", final_answer=text, artifacts={"d": {"directory": place}})
    )
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "data.json").write_text(text)
    update_section(folder / "checkpoint.json", "scheduler", {"status": "completed"})
    untouched = (folder / "checkpoint.json").stat().st_ino
    moved = store.move("t", "error") / "attempt-1"
    stored = json.loads((moved / "result.json").read_text())
    assert stored["final_answer"] == text and stored["artifacts"]["d"]["directory"] == place.replace("running", "error")
    assert (moved / "artifacts" / "data.json").read_text() == text
    assert (moved / "checkpoint.json").stat().st_ino == untouched


def test_a_task_that_is_published_again_is_swapped_whole(tmp_path: Path) -> None:
    """The attempts that are not given stay, artifacts come along, and the old form is gone."""
    store = TaskStore(tmp_path)
    folder = store.begin_attempt("t", 1)
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "out.txt").write_text("x")
    place = f"{folder.relative_to(tmp_path).as_posix()}/artifacts"
    publish(store, "t", result("1", folder=place))
    again = store.publish("t", category="c", ground_truth=1, attempt_plan=PLAN, attempts={2: result("2", FATAL)})
    assert again.parent.name == "fatal" and len(list(task_dirs(tmp_path))) == 1
    found = find_task(tmp_path, "t")
    assert found is not None and found.published and found.category == "c"
    first = found.attempts[1].read_result("artifacts", "final_answer")
    assert first.members["final_answer"] == "1"
    assert first.members["artifacts"]["declared_artifacts"]["directory"] == place.replace("running", "fatal")
    assert (found.attempts[1].path / "artifacts" / "out.txt").read_text() == "x"


def test_two_names_are_exchanged_in_one_step(tmp_path: Path) -> None:
    """What a republication in the same state stands on."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "x").write_text("")
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system can't exchange names")
    assert (tmp_path / "b" / "x").exists() and not (tmp_path / "a" / "x").exists()


def test_links_on_the_way_are_refused(tmp_path: Path) -> None:
    """A details folder that leads elsewhere is not written to."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "details").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedError, match="symbolic link"):
        publish(TaskStore(tmp_path / "run"), "t")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_published_task_is_not_changed_in_place(tmp_path: Path) -> None:
    """A result goes in with publish, whole; another attempt begins by opening the task again."""
    store = TaskStore(tmp_path)
    publish(store, "t")
    before = snapshot(tmp_path)
    with pytest.raises(RefusedError, match="published"):
        store.save_result("t", 1, result("8"))
    with pytest.raises(RefusedError, match="published"):
        store.attempt_dir("t", 2)
    assert snapshot(tmp_path) == before
    store.begin_attempt("t", 2)
    task = find_task(tmp_path, "t")
    assert task is not None and task.state == "running" and task.attempts[1].has_result and not task.published


# --- crashes


def _prepared(tmp_path: Path, published: bool) -> Callable[[], None]:
    def prepare() -> None:
        shutil.rmtree(tmp_path / "details", ignore_errors=True)
        store = TaskStore(tmp_path, durable=False)
        folder = store.begin_attempt("t", 1)
        (folder / "artifacts").mkdir()
        (folder / "artifacts" / "out.txt").write_text("x")
        update_section(folder / "checkpoint.json", "evaluation", {"directory": _artifacts_of(folder, tmp_path)})
        if published:
            publish(store, "t", result("old", folder=_artifacts_of(folder, tmp_path)))

    return prepare


def _artifacts_of(attempt: Path, run_dir: Path) -> str:
    return f"{attempt.relative_to(run_dir).as_posix()}/artifacts"


def _check_references(task: Any, run_dir: Path) -> None:
    for path in task.path.glob("attempt-*/*.json"):
        for line in path.read_text().splitlines():
            if '"directory"' in line:
                assert f'"{task.relative}/attempt-1/artifacts"' in line, (path, line)
                assert (run_dir / task.relative / "attempt-1/artifacts/out.txt").read_text() == "x"


@pytest.mark.parametrize("published", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("issues", [(), (FATAL,)], ids=["normal", "fatal"])
def test_a_crash_at_any_point_of_a_publication_leaves_the_old_task_or_the_new(
    tmp_path: Path, published: bool, issues: tuple[Issue, ...]
) -> None:
    """Before recovery a reader never sees a mixture; after it references fit and no leftovers stand."""
    new = result("new", *issues)
    seen = set()

    def action() -> None:
        publish(TaskStore(tmp_path), "t", new)

    for number in deaths(action, _prepared(tmp_path, published)):
        before = find_task(tmp_path, "t")
        assert before is not None and before.problem is None
        if before.published:
            answer = before.attempts[1].read_result("final_answer").members["final_answer"]
            assert answer in (("old", "new") if published else ("new",))
        elif published:
            pytest.fail(f"death {number}: the published task is gone")
        told: list[PartialSaved] = []
        TaskStore(tmp_path, append=told.append).recover(unsaved=["t"])
        (task,) = task_dirs(tmp_path)
        assert not task.leftovers and not task.problems and not list((tmp_path / "details").glob(".*"))
        _check_references(task, tmp_path)
        if task.published:
            found = task.attempts[1].read_result("final_answer")
            assert found.members["final_answer"] in ("old", "new") and len(told) == 1
            seen.add((found.members["final_answer"], task.state))
        else:
            assert not told
            seen.add(("unpublished", task.state))
            publish(TaskStore(tmp_path), "t", new)  # and it can be published after all
            assert len(list(task_dirs(tmp_path))) == 1
    assert ("new", "fatal" if issues else "normal") in seen
    assert (("old", "normal") if published else ("unpublished", "running")) in seen


def test_a_crash_while_earlier_outputs_are_moved_is_finished(tmp_path: Path) -> None:
    """Nothing of an attempt is lost: all of it stands in the attempt or in one archive."""

    def action() -> None:
        TaskStore(tmp_path).begin_attempt("t", 1)

    for _ in deaths(action, _prepared(tmp_path, True)):
        TaskStore(tmp_path).recover()
        (task,) = task_dirs(tmp_path)
        attempt = task.attempts[1]
        assert not task.leftovers
        places = [attempt.path, *attempt.archives]
        for name in ("result.json", "checkpoint.json", "artifacts"):
            assert sum((place / name).exists() for place in places) == 1
        for archive in attempt.archives:
            for path in archive.glob("*.json"):
                if (archive / "artifacts").exists():
                    assert f"{archive.relative_to(tmp_path).as_posix()}/artifacts" in path.read_text()


def test_recovery_of_a_sound_run_changes_nothing(run_dir: Callable[[str], Path]) -> None:
    """Recorded runs, a killed one included, are left byte for byte."""
    for name in ("r_retry", "r_kill_mid", "r_resumed"):
        path = run_dir(name)
        before = snapshot(path)
        recovered = TaskStore(path).recover()
        assert snapshot(path) == before and not recovered.finished and not recovered.events


def test_a_task_whose_index_is_damaged_is_not_written_over(tmp_path: Path) -> None:
    """The damage is told, and the file stays for people."""
    store = TaskStore(tmp_path)
    folder = store.begin_attempt("t", 1)
    (folder.parent / "task.json").write_text('{"schema_ver')
    with pytest.raises(DamagedError, match=r"task\.json"):
        publish(store, "t")
    assert (folder.parent / "task.json").read_text() == '{"schema_ver'


def test_sections_of_a_checkpoint_survive_publication(tmp_path: Path) -> None:
    """Publishing changes where a checkpoint's artifacts are said to stand, nothing else in it."""
    _prepared(tmp_path, False)()
    publish(TaskStore(tmp_path), "t")
    task = find_task(tmp_path, "t")
    assert task is not None
    found = json.loads((task.attempts[1].path / "checkpoint.json").read_text())
    assert found["evaluation"] == {"directory": f"{task.relative}/attempt-1/artifacts"}
    assert read_checkpoint(task.attempts[1].path / "checkpoint.json").problems


def test_a_full_disk_at_any_point_of_a_publication_is_told_in_words(tmp_path: Path) -> None:
    """The task stays unpublished or whole, and after room has been made it is published."""
    new = result("new" * 300)
    told = 0
    for room in range(0, 4000, 250):
        _prepared(tmp_path, True)()
        files = FaultyFiles()
        files.room = room
        try:
            publish(TaskStore(tmp_path, files=files), "t", new)
        except OutputError as error:
            told += 1
            assert "can't be written: No space left on device" in error.message
            task = find_task(tmp_path, "t")
            assert task is not None and task.published
            assert task.attempts[1].read_result("final_answer").members["final_answer"] == "old"
        TaskStore(tmp_path).recover()
        publish(TaskStore(tmp_path), "t", new)
        (task,) = task_dirs(tmp_path)
        assert task.published and not task.leftovers
    assert told > 3


def test_tasks_are_published_from_many_threads(tmp_path: Path) -> None:
    """Different tasks don't wait for or disturb each other; attempts of one task neither."""
    told: list[PartialSaved] = []
    store = TaskStore(tmp_path, append=told.append, durable=False)

    def work(number: int) -> None:
        store.begin_attempt(f"t{number}", 1)
        store.begin_attempt("shared", number + 1)
        publish(store, f"t{number}", result(str(number)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(64)))
    assert len(told) == 64 and len(stored_severities(tmp_path)) == 64
    shared = find_task(tmp_path, "shared")
    assert shared is not None and sorted(shared.attempts) == list(range(1, 65)) and not shared.problems


def test_recovery_appends_the_event_that_a_crash_left_out(tmp_path: Path) -> None:
    """Published and not told: told once, and only while the run has no end."""
    run = tmp_path / "run"
    request = {name: {"id": name} for name in ("model", "benchmark", "harness", "environment")}
    with RunRecorder.create(run, request=request, durability="os", file_log_level=None) as recorder:
        for task_id in ("told", "untold", "begun"):
            recorder.append(TaskStarted(task_id=task_id))
        publish(TaskStore(run, append=recorder.append), "told")
        publish(TaskStore(run), "untold")
        TaskStore(run).begin_attempt("begun", 1)
        recorder.close()
    assert recover_results(run).events == ["untold"]
    assert recover_results(run).events == []
    names = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    assert [event["task_id"] for event in names if event["event"] == "partial_saved"] == ["told", "untold"]
    with RunRecorder.open(run, file_log_level=None) as recorder:
        recorder.append(TaskStarted(task_id="late"))
        publish(TaskStore(run), "late")
        recorder.finish("failed")
    assert recover_results(run).events == []
