"""Reuse: what is decided agrees with what AgentCompass really does, and what is brought over stands alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore.errors import InputError, RefusedError, UsageError
from eventstore.format.events import (
    AttemptFinished,
    AttemptStarted,
    ExecutionPlanResolved,
    ReuseLoaded,
    TaskFinished,
    TaskFinishedPayload,
    TaskStarted,
    TaskStartedPayload,
)
from eventstore.operations.reuse.apply import apply_reuse
from eventstore.operations.reuse.lineage import lineage_of
from eventstore.operations.reuse.plan import (
    ReusePlan,
    choose_source,
    plan_reuse,
    recovery_refusal,
    require_source,
    wanted_of,
)
from eventstore.operations.reuse.reuse_run import reuse_into
from eventstore.recording.recorder import RunRecorder
from eventstore.results.artifacts import collect, read_specs, sandbox_root
from eventstore.results.checkpoint_store import read_checkpoint, save_evaluation, save_scheduler
from eventstore.results.schema import AttemptResult
from eventstore.results.store import TaskStore
from eventstore.results.task_dirs import Issue, find_task, task_directory_name, task_dirs
from eventstore.run.request_record import read_request
from projections.reuse import Wanted, check_wanted, same_policy
from tests.tools.agentcompass_side import agentcompass, needs_agentcompass
from tests.tools.commands import Command
from tests.tools.dying import deaths
from tests.tools.recorded import RUNS

TOY = Wanted(benchmark_id="toy", k=2, strategy="avg")
REQUEST = {
    "model": {"id": "m"},
    "benchmark": {"id": "toy"},
    "harness": {"id": "none"},
    "environment": {"id": "host_process"},
    "execution": {"attempts": {"k": 2, "strategy": "avg"}},
}
ERROR = Issue("error", "run", "model_failed", "HTTP 400: no")
SCORING = Issue("error", "evaluate", "judge_failed", "HTTP 500: judge")
FATAL = Issue("fatal", "setup", "setup_failed", "no disk")


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(capfd)


def outcome(answer: str, *issues: Issue, **changes: Any) -> AttemptResult:
    status = "completed" if not issues else "eval_error" if issues == (SCORING,) else "run_error"
    meta: dict[str, Any] = {"benchmark": {}, "harness": {}}
    made = {"metrics": {"correct": not issues}, "final_answer": answer, "issues": issues, "meta": meta} | changes
    return AttemptResult(status=status, **made)


def checkpoint(store: TaskStore, run: Path, task_id: str, attempt: int, mode: str = "none", **changes: Any) -> Path:
    """The evaluation checkpoint of an attempt whose agent has completed."""
    folder = store.attempt_dir(task_id, attempt)
    manifest = collect(run, folder, [], sandbox_root(run), durable=False)
    members = {
        "task_id": task_id,
        "attempt": attempt,
        "source_run_id": run.name,
        "source_evaluation_mode": mode,
        "artifacts": manifest,
        "network_policy": {"network_mode": "public", "allowed_hosts": [], "denied_hosts": []},
        "run_result": {
            "task_id": task_id,
            "status": "completed",
            "category": "all",
            "final_answer": task_id[1:],
            "ground_truth": None,
            "trajectory": None,
            "issues": [],
            "artifacts": {},
            "metrics": {},
            "telemetry": {},
            "meta": None,
            "extra": {},
        },
        "prepared_task": {
            "task_id": task_id,
            "category": "all",
            "ground_truth": task_id[1:],
            "input": {"prompt": task_id[1:], "media": [], "files": [], "workspace": None, "tools": [], "messages": []},
            "output": {"answer": "a number", "files": []},
            "metadata": {},
        },
    }
    save_evaluation(run, folder / "checkpoint.json", members | changes, durable=False)
    return folder / "checkpoint.json"


def begun(run: Path) -> tuple[RunRecorder, TaskStore]:
    recorder = RunRecorder.create(run, request=REQUEST, durability="os", file_log_level=None)
    return recorder, TaskStore(run, append=recorder.append, durable=False)


def publish(store: TaskStore, task_id: str, *attempts: AttemptResult, **changes: Any) -> Path:
    plan = {"k": 2, "strategy": "avg"} | changes
    given = dict(enumerate(attempts, 1))
    return store.publish(task_id, category="all", ground_truth=task_id[1:], attempt_plan=plan, attempts=given)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A run that we wrote and left: t0 whole, t1 with an error, t2 half done, t3 not begun."""
    run = tmp_path / "m_toy_none" / "ours"
    recorder, store = begun(run)
    publish(store, "t0", outcome("0"), outcome("0"))
    publish(store, "t1", outcome("1"), outcome("1", ERROR))
    checkpoint(store, run, "t2", 1)
    store.save_result("t2", 1, outcome("2"))
    save_scheduler(store.attempt_dir("t2", 1) / "checkpoint.json", "t2", 1, status="completed", retries=1)
    checkpoint(store, run, "t2", 2)
    recorder.close()
    return run


def actions(plan: ReusePlan) -> dict[tuple[str, int], str]:
    return {(task.task_id, one.attempt): one.action for task in plan.tasks for one in task.attempts}


# --- agreement with what really happened


def test_the_plan_for_a_killed_run_is_what_agentcompass_then_did(runs_root: Path) -> None:
    """r_kill_mid → r_resumed: kept tasks and their severities, attempts scored again, attempts that ran."""
    source, resumed = (runs_root / RUNS[name] for name in ("r_kill_mid", "r_resumed"))
    plan = plan_reuse(source, wanted_of(read_request(resumed), max_retries=0))
    events = [json.loads(line) for line in (resumed / "progress.jsonl").read_text().splitlines()]
    (loaded,) = (event["payload"] for event in events if event["event"] == "reuse_loaded")
    assert plan.refusal is None and len(plan.reused) == loaded["reused_tasks"]
    assert plan.severity_counts == loaded["reused_severity_counts"]
    begun_tasks = {event["task_id"] for event in events if event["event"] == "task_started"}
    assert {task.task_id for task in plan.tasks if task.action != "keep"} <= begun_tasks
    assert not begun_tasks & set(plan.reused)
    worked = {(event["task_id"], event["attempt"]) for event in events if event["event"] == "attempt_started"}
    scored = {(event["task_id"], event["attempt"]) for event in events if event["phase"] == "recover_evaluation"}
    agents = {(event["task_id"], event["attempt"]) for event in events if event["phase"] == "run_harness"}
    decided = actions(plan)
    assert {key for key, action in decided.items() if action == "rescore"} == scored
    assert {key for key, action in decided.items() if action == "run"} == {key for key in agents if key in decided}
    assert not {key for key, action in decided.items() if action == "keep"} & worked


def test_what_is_brought_over_is_what_agentcompass_brought_over(runs_root: Path, tmp_path: Path) -> None:
    """Results and plans of kept attempts equal those in r_resumed, but for where they say they came from."""
    source, resumed = (runs_root / RUNS[name] for name in ("r_kill_mid", "r_resumed"))
    target = tmp_path / "target"
    applied = reuse_into(plan_reuse(source, wanted_of(read_request(source), max_retries=0)), target, durable=False)
    assert len(applied.reused) == 9 and applied.tasks_to_run == 51 and not applied.failed
    for task_id in applied.reused:
        mine, theirs = find_task(target, task_id), find_task(resumed, task_id)
        assert mine is not None and theirs is not None and mine.relative == theirs.relative
        assert mine.members == theirs.members
        for number in mine.attempts:
            first, second = (
                json.loads((task.attempts[number].path / "result.json").read_text()) for task in (mine, theirs)
            )
            histories = [result["artifacts"].pop("reuse_history") for result in (first, second)]
            assert (
                first == second
                and [history["retry_count"] for history in histories] == [histories[0]["retry_count"]] * 2
            )
    plans = json.loads((target / "run_info.json").read_text())["resolved_execution_plans"]
    theirs_plans = json.loads((resumed / "run_info.json").read_text())["resolved_execution_plans"]
    kept = {(task_id, attempt) for task_id, entry in plans.items() for attempt in entry["attempts"]}
    assert len(kept) == 19
    for task_id, attempt in kept:
        assert plans[task_id]["attempts"][attempt] == theirs_plans[task_id]["attempts"][attempt]


def test_an_attempt_kept_from_an_unfinished_task_is_published_as_agentcompass_did(
    runs_root: Path, tmp_path: Path
) -> None:
    """While a task runs, a result has its in-memory shape; publication gives it the nine members of a stored one."""
    source, resumed = (runs_root / RUNS[name] for name in ("r_kill_mid", "r_resumed"))
    target = tmp_path / "target"
    reuse_into(plan_reuse(source, wanted_of(read_request(source), max_retries=0)), target, durable=False)
    theirs = find_task(resumed, "arith-009")
    assert theirs is not None
    plan = {"k": 2, "strategy": "avg"}
    TaskStore(target).publish(
        "arith-009",
        category=theirs.category,
        ground_truth=theirs.ground_truth,
        attempt_plan=plan,
        attempts={2: outcome("1", ERROR)},
    )
    mine = find_task(target, "arith-009")
    assert mine is not None and mine.relative == theirs.relative and mine.members == theirs.members
    first, second = (json.loads((task.attempts[1].path / "result.json").read_text()) for task in (mine, theirs))
    assert [result["artifacts"].pop("reuse_history")["retry_count"] for result in (first, second)] == [0, 0]
    assert first == second and list(first) == list(second)


# --- decisions


def test_a_run_of_ours_is_planned_attempt_by_attempt(ours: Path) -> None:
    """Whole results are kept without a retry budget, whatever they say; others by what is left of them."""
    plan = plan_reuse(ours, TOY)
    assert plan.reused == ["t0", "t1"] and plan.severity_counts == {"error": 1}
    assert actions(plan) == {
        ("t0", 1): "keep",
        ("t0", 2): "keep",
        ("t1", 1): "keep",
        ("t1", 2): "keep",
        ("t2", 1): "keep",
        ("t2", 2): "rescore",
    }


@pytest.mark.parametrize(
    ("changes", "task", "attempts"),
    [
        ({}, "resume", {1: "keep", 2: "run"}),
        ({"retry_patterns": ["^HTTP 4"]}, "resume", {1: "keep", 2: "run"}),
        ({"retry_patterns": ["model_f"]}, "resume", {1: "keep", 2: "run"}),
        ({"retry_patterns": ["HTTP 9"]}, "keep", {1: "keep", 2: "keep"}),
        ({"max_retries": 0, "retry_patterns": ["HTTP 4"]}, "keep", {1: "keep", 2: "keep"}),
    ],
)
def test_an_error_is_run_again_where_a_pattern_matches_within_the_budget(
    ours: Path, changes: dict[str, Any], task: str, attempts: dict[int, str]
) -> None:
    """Message or code; the other attempt of the task is kept."""
    wanted = Wanted(
        **({"benchmark_id": "toy", "k": 2, "strategy": "avg", "max_retries": 1, "retry_patterns": ["400"]} | changes)
    )
    (decision,) = (task for task in plan_reuse(ours, wanted).tasks if task.task_id == "t1")
    assert (decision.action, {one.attempt: one.action for one in decision.attempts}) == (task, attempts)


def test_a_fatal_issue_is_run_again_within_any_budget_and_a_scoring_failure_is_only_scored(tmp_path: Path) -> None:
    """Fatal needs no pattern; where only scoring failed, the agent's work stands."""
    run = tmp_path / "run"
    recorder, store = begun(run)
    for task_id, issue in (("t0", FATAL), ("t1", SCORING), ("t2", Issue("warning", "run", "c", "HTTP 500"))):
        for attempt in (1, 2):
            checkpoint(store, run, task_id, attempt)
        publish(store, task_id, outcome("1", issue), outcome("1"))
    recorder.close()
    assert plan_reuse(run, TOY).reused == ["t0", "t1", "t2"]
    plan = plan_reuse(run, Wanted(benchmark_id="toy", k=2, strategy="avg", max_retries=1, retry_patterns=["500"]))
    decided = actions(plan)
    assert decided[("t0", 1)] == "run" and decided[("t1", 1)] == "rescore" and plan.reused == ["t2"]
    without = Wanted(
        benchmark_id="toy", k=2, strategy="avg", max_retries=1, retry_patterns=["500"], checkpoint_resume=False
    )
    assert actions(plan_reuse(run, without))[("t1", 1)] == "run"


def test_a_failed_attempt_with_a_fresh_checkpoint_is_scored_again(tmp_path: Path) -> None:
    """Its agent had completed: only what came after is done again."""
    run = tmp_path / "run"
    recorder, store = begun(run)
    for attempt, mode in ((1, "fresh"), (2, "none")):
        path = checkpoint(store, run, "t0", attempt, mode)
        store.save_result("t0", attempt, outcome("0", SCORING))
        save_scheduler(path, "t0", attempt, status="failed", retries=0, error="x")
    recorder.close()
    assert actions(plan_reuse(run, TOY)) == {("t0", 1): "rescore", ("t0", 2): "keep"}


def test_attempts_after_one_that_passed_are_not_needed(tmp_path: Path) -> None:
    """Strategy `pass`: what an attempt asked for in the source still counts."""
    run = tmp_path / "run"
    request = REQUEST | {"execution": {"attempts": {"k": 3, "strategy": "pass"}}}
    recorder = RunRecorder.create(run, request=request, durability="os", file_log_level=None)
    store = TaskStore(run, durable=False)
    store.save_result("t0", 1, outcome("0"))
    path = store.attempt_dir("t0", 1) / "checkpoint.json"
    save_scheduler(path, "t0", 1, status="completed", retries=0, stop_requested=True)
    plan = {"k": 3, "strategy": "pass"}
    store.publish(
        "t1", category=None, ground_truth=1, attempt_plan=plan, attempts={1: outcome("1", ERROR), 2: outcome("1")}
    )
    recorder.close()
    wanted = Wanted(benchmark_id="toy", k=3, strategy="pass", max_retries=1, retry_patterns=["400"])
    assert actions(plan_reuse(run, wanted)) == {
        ("t0", 1): "keep",
        ("t0", 2): "skip",
        ("t0", 3): "skip",
        ("t1", 1): "skip",
        ("t1", 2): "keep",
        ("t1", 3): "skip",
    }


REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "benchmark": ({}, {"benchmark_id": "other"}),
    "k = 2, strategy avg, and k = 3": ({}, {"k": 3}),
    "strategy pass": ({}, {"strategy": "pass"}),
    "schema": ({"schema_version": "agentcompass.run_info.v1"}, {}),
    "no run_id": ({"run_id": " "}, {}),
    "attempt plan is missing": ({"request": {"benchmark": {"id": "toy"}}}, {}),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_an_incompatible_source_is_refused_with_the_reason(ours: Path, words: str, command: Command) -> None:
    """Schema, id, benchmark and attempt plan; exit 1, and nothing is brought over."""
    changes, wanted = REFUSALS[words]
    info = json.loads((ours / "run_info.json").read_text())
    (ours / "run_info.json").write_text(json.dumps(info | changes))
    plan = plan_reuse(ours, Wanted(**({"benchmark_id": "toy", "k": 2, "strategy": "avg"} | wanted)))
    assert words in (plan.refusal or "") and plan.tasks == []
    with pytest.raises(RefusedError, match="nothing can be reused"):
        reuse_into(plan, ours.parent / "target")
    assert not (ours.parent / "target").exists()


def test_model_harness_and_settings_need_not_match(ours: Path) -> None:
    """Only benchmark and attempt plan bind; fingerprints of older records are ignored."""
    info = json.loads((ours / "run_info.json").read_text())
    info["request"] |= {"model": {"id": "other"}, "harness": {"id": "h"}, "environment": {"id": "docker"}}
    (ours / "run_info.json").write_text(json.dumps(info | {"execution_fingerprints": {"t0": "x"}}))
    assert plan_reuse(ours, TOY).reused == ["t0", "t1"]


def test_a_flipped_byte_in_an_artifact_is_a_reason_to_run_again(tmp_path: Path) -> None:
    """A plan compares checksums: it doesn't promise what can't be kept."""
    run = tmp_path / "run"
    recorder, store = begun(run)
    (tmp_path / "box" / "app").mkdir(parents=True)
    (tmp_path / "box" / "app" / "out").write_text("value")
    folder = store.begin_attempt("t0", 1)
    manifest = collect(run, folder, read_specs(["/app/out"]), sandbox_root(tmp_path / "box"))
    checkpoint(store, run, "t0", 2)
    publish(store, "t0", outcome("0", artifacts={"declared_artifacts": manifest}), outcome("0"))
    recorder.close()
    assert plan_reuse(run, TOY).reused == ["t0"]
    (stored,) = run.rglob("artifacts/app/out")
    stored.write_text("valve")
    (decision,) = plan_reuse(run, TOY).tasks
    assert decision.action == "resume" and "not what was collected" in decision.reason
    assert [one.action for one in decision.attempts] == ["run", "rescore"]
    assert plan_reuse(run, TOY, check_files=False).reused == ["t0"]


def test_an_older_result_is_kept_only_where_its_failure_is_classified(ours: Path, tmp_path: Path) -> None:
    """task.v2 in layout v2 below run_info.v2; the source stays as it is, the target is of today's schema."""
    info = json.loads((ours / "run_info.json").read_text())
    (ours / "run_info.json").write_text(json.dumps(info | {"schema_version": "agentcompass.run_info.v2"}))
    shutil.rmtree(ours / "details")
    for task_id, members in (
        ("t0", {"status": "completed", "error": ""}),
        ("t1", {"status": "run_error", "error": "x"}),
    ):
        folder = ours / "details" / task_directory_name(task_id)
        index = {"schema_version": "agentcompass.task.v2", "task_id": task_id, "attempts": {"1": "attempt-1"}}
        (folder / "attempt-1").mkdir(parents=True)
        shared = {"category": None, "ground_truth": "0", "attempt_plan": {"k": 2, "strategy": "avg"}}
        (folder / "task.json").write_text(json.dumps(index | shared))
        whole = {
            "metrics": {},
            "final_answer": "0",
            "trajectory": {},
            "artifacts": {},
            "analysis_result": {},
            "meta": {"benchmark": {}, "harness": {}},
            "retry_count": 0,
        }
        (folder / "attempt-1" / "result.json").write_text(json.dumps(members | whole))
    plan = plan_reuse(ours, TOY)
    assert plan.reused == ["t0"]
    assert "not classified" in next(task.reason for task in plan.tasks if task.task_id == "t1")
    applied = reuse_into(plan, tmp_path / "target", durable=False)
    task = find_task(tmp_path / "target", "t0")
    assert applied.reused == ["t0"] and task is not None and task.schema == "agentcompass.task.v3"
    found = json.loads((task.attempts[1].path / "result.json").read_text())
    assert found["issues"] == [] and "error" not in found


ODD: dict[str, Callable[[dict[str, Any]], object]] = {
    "'score', which no result has": lambda members: members.update(score=1),
    "lacks trajectory": lambda members: members.pop("trajectory"),
    "meta has other members": lambda members: members.update(meta={"benchmark": {}}),
    "artifacts is no object": lambda members: members.update(artifacts=[1]),
    "is not finite": lambda members: members.update(metrics={"correct": float("nan")}),
    "status is 'odd'": lambda members: members.update(status="odd"),
}


@pytest.mark.parametrize("words", ODD)
def test_a_result_that_a_strict_reader_refuses_is_not_kept(ours: Path, words: str) -> None:
    """AgentCompass refuses the whole task then, and so does the plan."""
    path = next(ours.rglob("t0--*/attempt-2/result.json"))
    members = json.loads(path.read_text())
    ODD[words](members)
    path.write_text(json.dumps(members))
    plan = plan_reuse(ours, TOY)
    assert plan.reused == ["t1"] and words in next(task.reason for task in plan.tasks if task.task_id == "t0")
    assert {actions(plan)[("t0", attempt)] for attempt in (1, 2)} == {"run"}


def test_what_the_new_run_asks_of_a_checkpoint_is_compared(ours: Path) -> None:
    """Evaluation mode, network policy and coverage of declared artifacts, where they are given."""

    def action(**changes: Any) -> str:
        wanted = Wanted(**({"benchmark_id": "toy", "k": 2, "strategy": "avg"} | changes))
        return actions(plan_reuse(ours, wanted))[("t2", 2)]

    assert action(evaluation_mode="none", network_policy={"network_mode": "public"}) == "rescore"
    assert action(evaluation_mode="fresh") == "run"
    assert action(network_policy={"network_mode": "no-network"}) == "run"
    assert action(artifacts=[("/app", "app")]) == "rescore"  # nothing is restored without an environment
    store = TaskStore(ours, durable=False)
    checkpoint(store, ours, "t2", 2, "fresh")
    assert action(artifacts=[]) == "rescore" and action(artifacts=[("/app", "app")]) == "run"
    assert recovery_refusal(ours, "t2", 2, TOY) is None
    lacking = Wanted(benchmark_id="toy", k=2, strategy="avg", artifacts=[("/app", "app")])
    assert "'/app'" in (recovery_refusal(ours, "t2", 2, lacking) or "")
    assert recovery_refusal(ours, "t2", 9, TOY) == "there is no such attempt"
    assert recovery_refusal(ours, "t0", 1, TOY) == "there is no checkpoint"


def test_policies_that_mean_the_same_are_the_same() -> None:
    """Empty lists may be left out of a stored one."""
    assert same_policy({"network_mode": "public", "allowed_hosts": []}, {"network_mode": "public"})
    assert not same_policy({"network_mode": "public", "allowed_hosts": ["a"]}, {"network_mode": "public"})


@pytest.mark.parametrize("changes", [{"k": 0}, {"strategy": ""}, {"max_retries": -1}, {"retry_patterns": ["("]}])
def test_what_no_run_can_ask_for_is_refused(changes: dict[str, Any]) -> None:
    """A pattern that is no regular expression, a budget below nothing."""
    with pytest.raises(UsageError):
        check_wanted(Wanted(**({"benchmark_id": "b", "k": 1, "strategy": "avg"} | changes)))


# --- choosing a source


def _copy(ours: Path, name: str, started: str, status: str | None, drop: str = "") -> Path:
    target = ours.parent / name
    shutil.copytree(ours, target)
    info = json.loads((target / "run_info.json").read_text()) | {"run_id": name, "started_at": started}
    (target / "run_info.json").write_text(json.dumps(info | ({"status": status} if status else {})))
    if drop:
        shutil.rmtree(next((target / "details").glob(f"*/{drop}--*")))
    return target


def test_the_newest_run_is_chosen_unless_it_is_worse(ours: Path) -> None:
    """A run that died or holds fewer finished tasks is passed over, and that is said."""
    root = ours.parent
    shutil.move(ours, root.parent / "aside")
    ours = root.parent / "aside"
    shutil.copytree(ours, root / "x")
    ours = root / "x"
    old = _copy(ours, "old", "2026-01-01T00:00:00+00:00", "completed")
    shutil.rmtree(ours)
    assert choose_source(root, TOY).run_dir == old
    newer = _copy(old, "newer", "2026-01-02T00:00:00+00:00", "failed")
    assert choose_source(root, TOY).run_dir == newer
    fewer = _copy(old, "fewer", "2026-01-03T00:00:00+00:00", "completed", drop="t1")
    choice = choose_source(root, TOY)
    assert choice.run_dir == newer and any(str(fewer) in note and "1 finished" in note for note in choice.notes)
    dead = _copy(old, "dead", "2026-01-04T00:00:00+00:00", None)
    (dead / "run_info.json").write_text(
        json.dumps({k: v for k, v in json.loads((dead / "run_info.json").read_text()).items() if k != "status"})
    )
    choice = choose_source(root, TOY)
    assert choice.run_dir == newer and any("did not finish" in note for note in choice.notes)
    for path in (old, newer, fewer):
        shutil.rmtree(path)
    choice = choose_source(root, TOY)
    assert choice.run_dir == dead and any("did not finish" in note for note in choice.notes)
    with pytest.raises(InputError, match="no run that could be reused"):
        require_source(choose_source(root, Wanted(benchmark_id="other", k=2, strategy="avg")), root)


# --- bringing over


def test_the_target_stands_alone_and_says_where_it_comes_from(ours: Path, tmp_path: Path) -> None:
    """With the source gone, everything kept is still kept, and the rest can still be scored."""
    target = ours.parent / "second"
    applied = reuse_into(plan_reuse(ours, TOY), target, total_tasks=4, durable=False)
    assert applied.reused == ["t0", "t1"] and applied.resumed == {"t2": [1, 2]} and applied.tasks_to_run == 2
    info = json.loads((target / "run_info.json").read_text())
    assert info["reused_from"] == {"run_id": "ours", "path": str(ours)}
    lines = [json.loads(line) for line in (target / "progress.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["run_started", "tasks_loaded", "reuse_loaded"]
    assert lines[0]["payload"]["reused_from"]["run_id"] == "ours"
    assert lines[2]["payload"] == {"reused_tasks": 2, "tasks_to_run": 2, "reused_severity_counts": {"error": 1}}
    progress = json.loads((target / "progress.json").read_text())
    assert (progress["reused_tasks"], progress["pending_tasks"], progress["error_tasks"]) == (2, 2, 1)
    shutil.rmtree(ours)
    assert actions(plan_reuse(target, TOY)) == actions(plan_reuse(target, TOY, check_files=False))
    assert plan_reuse(target, TOY).reused == ["t0", "t1"]
    assert actions(plan_reuse(target, TOY))[("t2", 2)] == "rescore"
    assert read_checkpoint(next(target.rglob("t2--*/attempt-1/checkpoint.json"))).scheduler is not None


def test_a_runner_goes_on_where_reuse_left_off(runs_root: Path, tmp_path: Path, command: Command) -> None:
    """Opened again and finished, the run passes verify, and plans of reused attempts are still there."""
    target = tmp_path / "made"
    shutil.copytree(runs_root / RUNS["r_kill_mid"], tmp_path / "r_kill_mid")
    plan = plan_reuse(tmp_path / "r_kill_mid", wanted_of(read_request(runs_root / RUNS["r_kill_mid"]), max_retries=0))
    kept = reuse_into(plan, target, total_tasks=10).reused
    with RunRecorder.open(target, file_log_level=None) as recorder:
        store = TaskStore(target, append=recorder.append)
        task: dict[str, Any] = {"task_id": "arith-013", "category": "all"}
        recorder.append(TaskStarted(**task, payload=TaskStartedPayload(index=9, total=10)))
        for attempt in (1, 2):
            recorder.append(AttemptStarted(**task, attempt=attempt))
            recorder.append(ExecutionPlanResolved(**task, attempt=attempt, phase="plan", payload={"a": 1}))
            store.begin_attempt("arith-013", attempt)
            recorder.append(AttemptFinished(**task, attempt=attempt, status="completed"))
        publish(store, "arith-013", outcome("1"), outcome("1"))
        done = TaskFinishedPayload(index=9, total=10, severity="")
        recorder.append(TaskFinished(**task, status="completed", payload=done))
        recorder.finish("completed")
    info = json.loads((target / "run_info.json").read_text())
    assert len(kept) == 9 and set(kept) | {"arith-009", "arith-013"} == set(info["resolved_execution_plans"])
    progress = json.loads((target / "progress.json").read_text())
    assert (progress["finished_tasks"], progress["completed_tasks"], progress["status"]) == (10, 10, "completed")
    command("verify", target, "--json")
    assert [finding for finding in command.document["findings"] if finding["severity"] == "error"] == []
    assert command("replay", target, "--json") == 0 and command.document["changed"] == []


def test_reuse_is_recorded_even_where_nothing_is_reused(tmp_path: Path) -> None:
    """`reused_from` and `reuse_loaded` with zero."""
    run = tmp_path / "empty"
    recorder, _ = begun(run)
    recorder.close()
    applied = reuse_into(plan_reuse(run, TOY), tmp_path / "target", total_tasks=3)
    lines = [json.loads(line) for line in (tmp_path / "target" / "progress.jsonl").read_text().splitlines()]
    assert applied.reused == [] and lines[0]["payload"]["reused_from"]["run_id"] == "empty"
    assert lines[-1]["payload"] == {"reused_tasks": 0, "tasks_to_run": 3, "reused_severity_counts": {}}


def test_what_is_gone_between_plan_and_doing_is_told_and_runs_again(ours: Path) -> None:
    """The counts are those of what was really kept."""
    plan = plan_reuse(ours, TOY)
    (next(ours.rglob("t0--*/attempt-2/result.json"))).unlink()
    told: list[ReuseLoaded] = []
    target = ours.parent / "target"
    recorder, _ = begun(target)
    applied = apply_reuse(plan, target, append=told.append, save_plans=recorder.keep_plans, total_tasks=4)
    recorder.close()
    assert applied.reused == ["t1"] and "t0" in applied.failed and applied.tasks_to_run == 3
    assert told[0].payload.reused_tasks == 1
    task = find_task(target, "t0")
    assert task is None or not task.published


def test_only_the_new_runs_own_tasks_are_brought_over(ours: Path) -> None:
    """A runner hands in the ids that it has loaded."""
    target = ours.parent / "target"
    recorder, _ = begun(target)
    applied = apply_reuse(plan_reuse(ours, TOY), target, task_ids={"t1", "t9"}, save_plans=recorder.keep_plans)
    recorder.close()
    assert applied.reused == ["t1"] and [task.task_id for task in task_dirs(target)] == ["t1"]


def test_a_run_that_has_begun_or_is_the_source_itself_is_refused(ours: Path, runs_root: Path) -> None:
    """Results are reused before tasks begin, and never onto themselves."""
    plan = plan_reuse(ours, TOY)
    with pytest.raises(RefusedError, match="can't reuse itself"):
        apply_reuse(plan, ours)
    target = ours.parent / "target"
    reuse_into(plan, target)
    with pytest.raises(RefusedError, match="have begun"):
        reuse_into(plan, target)


def test_a_crash_while_results_are_brought_over_is_made_good_by_doing_it_again(ours: Path) -> None:
    """At whatever point the process dies, nothing half published is there, and the second try ends as the first."""
    plan, target = plan_reuse(ours, TOY), ours.parent / "target"

    def prepare() -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        (target / "run_info.json").write_text((ours / "run_info.json").read_text())

    def contents() -> dict[str, bytes]:
        files = (path for path in sorted(target.rglob("*")) if path.is_file())
        return {path.relative_to(target).as_posix(): path.read_bytes() for path in files}

    prepare()
    apply_reuse(plan, target, durable=False)
    whole = contents()
    for _ in deaths(lambda: apply_reuse(plan, target, durable=False), prepare, step=5):
        for task in task_dirs(target):
            assert not task.published or task.severity in ("", "error")
        TaskStore(target, durable=False).recover()
        applied = apply_reuse(plan, target, durable=False)
        assert applied.reused == ["t0", "t1"] and not applied.failed
        assert contents() == whole


# --- lineage


def test_lineage_tells_agent_and_scoring_over_two_reuses(ours: Path) -> None:
    """A result that went through three runs still names the one where it was made."""
    second, third = ours.parent / "second", ours.parent / "third"
    reuse_into(plan_reuse(ours, TOY), second, durable=False)
    store = TaskStore(second, durable=False)
    publish(store, "t2", outcome("2"), outcome("2"))
    reuse_into(plan_reuse(second, TOY), third, durable=False)
    found = lineage_of(third)
    assert [generation.run_id for generation in found.generations] == ["third", "second", "ours"]
    origins = {(task.task_id, one.attempt): one for task in found.tasks for one in task.attempts}
    assert (origins["t0", 1].scored_run_id, origins["t0", 1].through) == ("ours", ["third", "second", "ours"])
    assert (origins["t2", 2].agent_run_id, origins["t2", 2].scored_run_id) == ("ours", "second")


def test_a_recorded_path_is_not_followed(ours: Path, tmp_path: Path) -> None:
    """The source is looked for by its id, beside the run or below a folder that the user names; circles end."""
    target = tmp_path / "elsewhere" / "target"
    reuse_into(plan_reuse(ours, TOY), target, durable=False)
    assert [generation.path for generation in lineage_of(target).generations] == [target, None]
    assert [generation.path for generation in lineage_of(target, tmp_path).generations] == [target, ours]
    info = json.loads((ours / "run_info.json").read_text())
    (ours / "run_info.json").write_text(json.dumps(info | {"reused_from": {"run_id": "target"}}))
    assert "circle" in (lineage_of(target, tmp_path).generations[-1].problem or "")


# --- commands


def test_reuse_plan_as_a_command(command: Command, runs_root: Path) -> None:
    """Tasks and reasons as JSON; a table for people; nothing on stdout that isn't data."""
    source = runs_root / RUNS["r_kill_mid"]
    assert command("reuse", "plan", source, "--max-retries", 0, "--json") == 0
    document = command.document
    assert document["reused_tasks"] == 9 and document["reused_severity_counts"] == {"error": 3}
    assert {task["action"] for task in document["tasks"]} == {"keep", "resume", "run"}
    assert all(one["reason"] for task in document["tasks"] for one in task["attempts"])
    assert command("reuse", "plan", source) == 0
    assert "arith-012" in command.out and "6 of 60 tasks kept" in command.err
    assert command("reuse", "plan", source, "--max-retries", 1, "--retry-pattern", "400", "--json") == 0
    assert command.document["reused_tasks"] == 6
    assert command("reuse", "plan", source, "--attempts", 3, "--json") == 1
    assert "k = 2" in command.document["refusal"]
    assert command("reuse", "plan", source, "--retry-pattern", "(", "--json") == 2
    assert command.document["error"]["kind"] == "usage"
    assert command("reuse", "plan", source / "nowhere", "--json") == 3


def test_reuse_of_the_newest_run_below_a_folder(command: Command, runs_root: Path) -> None:
    """What is wanted must be said, and why others were passed over is told."""
    assert command("reuse", "plan", runs_root, "--json") == 2
    assert command("reuse", "plan", runs_root, "--benchmark", "toy_arith", "--attempts", 2, "--json") == 0
    assert command.document["run_id"] == "r_resumed" and command.document["warnings"]


def test_reuse_apply_and_lineage_as_commands(command: Command, runs_root: Path, tmp_path: Path) -> None:
    """A run made from a killed one passes verify, and says where its results came from."""
    target = tmp_path / "made"
    assert command("reuse", "apply", runs_root / RUNS["r_kill_mid"], target, "--max-retries", 0, "--json") == 0
    document = command.document
    assert len(document["reused"]) == 9 and document["tasks_to_run"] == 51 and document["failed"] == {}
    assert command("reuse", "apply", runs_root / RUNS["r_kill_mid"], target, "--max-retries", 0, "--json") == 1
    assert command("reuse", "lineage", runs_root / RUNS["r_resumed"], "--json") == 0
    document = command.document
    assert [generation["run_id"] for generation in document["generations"]] == ["r_resumed", "r_kill_mid"]
    assert len(document["tasks"]) == 60
    assert command("reuse", "lineage", target) == 0 and "r_kill_mid" in command.err


# --- the real program


@needs_agentcompass
def test_agentcompass_reads_what_we_publish(ours: Path, tmp_path: Path) -> None:
    """Its strict reader accepts our results, and says of them what we do."""
    found = {task["task_id"]: task for task in agentcompass("results", ours)}
    assert set(found) == {"t0", "t1"} and found["t1"]["attempts"]["2"]["issues"][0]["message"] == "HTTP 400: no"
    path = next(ours.rglob("t2--*/attempt-2/checkpoint.json"))
    assert agentcompass("checkpoint", path)["task_id"] == "t2"
    box = tmp_path / "box" / "app"
    (box / "deep").mkdir(parents=True)
    (box / "deep" / "out").write_text("value")
    (box / "link").symlink_to("deep/out")
    store = TaskStore(ours)
    folder = store.attempt_dir("t5", 1)
    manifest = collect(ours, folder, read_specs(["/app", "/nowhere"]), sandbox_root(tmp_path / "box"))
    kept = json.loads(checkpoint(store, ours, "t5", 2, "fresh").read_text())["evaluation"] | {"task_id": "t5"}
    save_evaluation(ours, folder / "checkpoint.json", kept | {"attempt": 1, "artifacts": manifest})
    found_there = agentcompass("checkpoint", folder / "checkpoint.json")
    assert [entry["status"] for entry in found_there["artifacts"]["entries"]] == ["collected", "missing"]


@needs_agentcompass
def test_agentcompass_reuses_a_run_that_we_wrote(ours: Path) -> None:
    """Two tasks kept, one attempt kept, one scored from our checkpoint, the rest run: as our plan says."""
    plan = plan_reuse(ours, TOY)
    done = agentcompass("evaluate", ours.parent.parent, "theirs", 2, "ours", TOY_TASKS="4")
    assert done["ran"] == [["t3", 1], ["t3", 2]] and sorted(done["scored"]) == ["t2", "t3", "t3"]
    _check_agreement(plan, ours.parent / "theirs", done)


@needs_agentcompass
def test_agentcompass_reuses_its_killed_run_as_planned_and_as_brought_over(tmp_path: Path) -> None:
    """Our plan for a run that it left half done, its own reuse of it, and its reuse of what we made of it, agree."""
    agentcompass("evaluate", tmp_path, "killed", 2, "--stop-after", 3, expect=9, TOY_TASKS="4")
    killed = tmp_path / "m_toy_none" / "killed"
    plan = plan_reuse(killed, TOY)
    assert plan.reused == ["t0"]
    applied = reuse_into(plan, killed.parent / "made", total_tasks=4)
    assert not applied.failed
    direct = agentcompass("evaluate", tmp_path, "direct", 2, "killed", TOY_TASKS="4")
    _check_agreement(plan, killed.parent / "direct", direct)
    shutil.rmtree(killed)
    through_ours = agentcompass("evaluate", tmp_path, "through", 2, "made", TOY_TASKS="4")
    assert through_ours == direct
    assert len(agentcompass("results", killed.parent / "through")) == 4


FAULTS = {
    "t0/1": "error run",
    "t0/2": "warning run",
    "t1/1": "error evaluate",
    "t1/2": "fatal run",
    "t2/1": "fatal evaluate",
}


@needs_agentcompass
@pytest.mark.parametrize(("patterns", "reused"), [(["in run"], []), (["evaluate_f"], ["t0"])], ids=["run", "evaluate"])
def test_agentcompass_retries_issues_of_a_source_as_planned(
    tmp_path: Path, patterns: list[str], reused: list[str]
) -> None:
    """Errors of the agent, of scoring, fatal ones and warnings, under a retry budget: attempt by attempt."""
    faults = json.dumps(FAULTS)
    agentcompass("evaluate", tmp_path, "killed", 2, "--stop-after", 5, expect=9, TOY_TASKS="4", TOY_FAULTS=faults)
    wanted = Wanted(benchmark_id="toy", k=2, strategy="avg", max_retries=1, retry_patterns=patterns)
    plan = plan_reuse(tmp_path / "m_toy_none" / "killed", wanted)
    assert plan.reused == reused
    options = ["--max-retries", 1, *(option for pattern in patterns for option in ("--pattern", pattern))]
    done = agentcompass("evaluate", tmp_path, "theirs", 2, "killed", *options, TOY_TASKS="4")
    _check_agreement(plan, tmp_path / "m_toy_none" / "theirs", done)


def _check_agreement(plan: ReusePlan, run: Path, done: dict[str, Any]) -> None:
    events = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    (loaded,) = (event["payload"] for event in events if event["event"] == "reuse_loaded")
    assert loaded["reused_tasks"] == len(plan.reused) and loaded["reused_severity_counts"] == plan.severity_counts
    decided = actions(plan)
    scored = {(event["task_id"], event["attempt"]) for event in events if event["phase"] == "recover_evaluation"}
    ran = {(task_id, attempt) for task_id, attempt in done["ran"]}
    assert scored - ran == {key for key, action in decided.items() if action == "rescore"}
    assert ran & decided.keys() == {key for key, action in decided.items() if action == "run"}


@needs_agentcompass
def test_the_fingerprints_that_tests_compare_with_are_agentcompass_own(tmp_path: Path) -> None:
    """tests/data/artifacts/fingerprints.json is what its function says today."""
    from eventstore.results.tree_copy import remove_tree
    from tests.tools.trees import COUNT, make_tree

    golden: Callable[[int], dict[str, Any]] = json.loads(
        (Path(__file__).parents[1] / "data" / "artifacts" / "fingerprints.json").read_text()
    ).__getitem__
    for number in range(0, COUNT, 8):
        path = make_tree(tmp_path, number)
        assert agentcompass("fingerprint", path) == golden(str(number))  # type: ignore[arg-type]
        remove_tree(path)


def test_of_two_runs_with_one_id_the_lineage_has_the_one_of_the_recorded_folder(tmp_path: Path) -> None:
    """Ids are not unique: two groups of a history may each have a run of this one."""
    for group in ("a", "b", "c"):
        run = tmp_path / group / "r_same"
        run.mkdir(parents=True)
        (run / "run_info.json").write_text(json.dumps({"run_id": "r_same", "status": "failed"}))
    run = tmp_path / "d" / "r_new"
    run.mkdir(parents=True)
    source = {"run_id": "r_same", "path": "/elsewhere/b/r_same"}
    (run / "run_info.json").write_text(json.dumps({"run_id": "r_new", "status": "failed", "reused_from": source}))
    assert lineage_of(run, tmp_path).generations[1].path == tmp_path / "b" / "r_same"
