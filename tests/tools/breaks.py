"""The table: for each rule, a recorded run and the change that breaks that rule."""

import shutil
from pathlib import Path

from tests.tools import breaking as b
from tests.tools import breaking_stories as story
from tests.tools.breaking import Break

TASK = "task_finished"


def _escape(run: Path) -> None:
    folder = b.artifact_of(run).parent
    shutil.rmtree(folder)
    folder.symlink_to("/etc")


def _listed_twice(lines: list[bytes]) -> None:
    lines[10] = lines[10].replace(b'"status": null', b'"status": null, "status": "x"', 1)


def _no_partial(run: Path) -> None:
    shutil.rmtree(b.task_dir(run))


def _plan_key(info: b.Json) -> None:
    task = next(iter(info["resolved_execution_plans"].values()))
    task["attempts"]["first"] = task["attempts"].pop("1")


def _no_plan(info: b.Json) -> None:
    info["resolved_execution_plans"].pop(next(iter(info["resolved_execution_plans"])))


def _stray_plan(info: b.Json) -> None:
    plans = info["resolved_execution_plans"]
    plans["stray"] = next(iter(plans.values()))


BREAKS: dict[str, Break] = {
    # -- stream
    "torn_tail": Break("r_ok", lambda run: (run / "progress.jsonl").open("ab").write(b'{"run_id"') and None),
    "lost_acknowledged": Break("r_ok", b.promise_more, b.seal_stream),
    "corrupt_line": Break("r_ok", b.edit_lines(lambda lines: lines.insert(20, b"\0" * 40 + b"\n"))),
    "glued_line": Break("r_ok", b.edit_lines(b.glue)),
    "digest_mismatch": Break(
        "r_ok",
        b.edit_lines(lambda lines: lines.__setitem__(20, lines[20].replace(b'"category": "', b'"category": "x', 1))),
        b.seal_stream,
    ),
    "chain_break": Break(
        "r_ok",
        b.edit_lines(lambda lines: lines.__setitem__(slice(20, 22), [lines[21], lines[20]])),
        b.seal_stream,
    ),
    "gap": Break("r_ok", b.edit_lines(lambda lines: lines.pop(20)), b.seal_stream),
    "repeated": Break("r_ok", b.edit_lines(lambda lines: lines.insert(21, lines[20])), b.seal_stream),
    "foreign_run": Break("r_ok", b.edit_lines(lambda lines: lines.insert(20, lines[20].replace(b"r_ok", b"r_x", 1)))),
    "unsealed_line": Break(
        "r_ok",
        b.edit_lines(
            lambda lines: lines.append(
                lines[-1].replace(b"run_finished", b"records_lost").partition(b',"log"')[0] + b"}\n"
            )
        ),
        b.seal_stream,
    ),
    "unsealed": Break("r_ok", b.edit_lines(lambda lines: [_unseal(line) for line in lines]), b.seal_stream),
    "prefix_changed": Break("r_ok", b.alter("summary_started", payload={"note": 1}), b.index_run),
    "stream_missing": Break("p_load", story.no_stream_and_status),
    "events_lost": Break("r_ok", lambda run: (run / "progress.jsonl").write_bytes(b"") and None),
    "stream_unreadable": Break("r_ok", lambda run: b.as_directory_of(run, "progress.jsonl")),
    "repaired": Break("r_ok", b.damage_and_repair),
    "unreadable": Break("r_ok", lambda run: b.artifact_of(run).chmod(0), b.add_artifacts),
    "duplicate_key": Break("r_ok", b.edit_lines(_listed_twice)),
    "repeated_line": Break("r_ok", b.edit_lines(lambda lines: lines.insert(21, lines[20]))),
    "clock_back": Break("r_ok", b.edit_events(b.clock_back)),
    "silent_gap": Break("r_ok", b.edit_events(b.clock_on)),
    "odd_timestamp": Break("r_ok", b.alter("summary_started", timestamp=float("inf"))),
    "unknown_event": Break("r_ok", b.edit_events(lambda events: events.insert(20, {**events[19], "event": "tea"}))),
    "analysis_stream": Break("r_evalerr_reanalysis", lambda run: None),
    "leftover_file": Break("r_ok", lambda run: (run / ".tmp.progress.json.1").write_text("{") and None),
    # -- lifecycle
    "no_run_started": Break("r_ok", b.remove("run_started")),
    "no_terminal_event": Break("p_load", story.without_end),
    "run_live": Break("r_kill_early", b.hold_stream_open),
    "run_restarted": Break("r_ok", b.edit_events(b.restart)),
    "event_after_end": Break("r_ok", b.repeat("summary_started", after="run_finished")),
    "repeated_event": Break("r_ok", b.repeat("summary_started")),
    "out_of_order": Break("r_ok", b.edit_events(lambda events: b.swap(events, 1, 2))),
    "payload_incomplete": Break("r_retry2", b.alter("attempt_retry", payload={"stage": None})),
    "unknown_status": Break("r_ok", b.alter("attempt_finished", status="done")),
    "unknown_severity": Break("r_ok", b.alter(TASK, payload={"severity": "grave"})),
    "severity_against_status": Break("r_evalerr", story.severity_against_status),
    "reuse_arithmetic": Break("r_resumed", b.alter("reuse_loaded", payload={"reused_severity_counts": {"error": 99}})),
    "more_tasks_than_loaded": Break("r_kill_mid", b.alter("tasks_loaded", payload={"total_tasks": 14})),
    "no_task_id": Break("r_ok", b.alter("partial_saved", task_id=None)),
    "task_started_twice": Break("r_ok", b.repeat("task_started")),
    "task_not_started": Break("r_ok", b.repeat("phase_changed", task_id="stranger")),
    "task_finished_twice": Break("r_ok", b.repeat(TASK)),
    "late_event": Break("r_ok", b.repeat("partial_saved", after=TASK)),
    "position_mismatch": Break("r_ok", b.alter(TASK, payload={"index": 3})),
    "index_repeated": Break("r_ok", story.same_index),
    "category_changed": Break("r_ok", b.alter("attempt_finished", category="other")),
    "task_in_flight": Break("r_surrogate", b.edit_events(story.without_failed_finish)),
    "completed_with_open_task": Break("r_ok", b.edit_events(b.unfinished)),
    "completed_but_incomplete": Break("r_ok", story.one_more_task),
    "completed_without_summary": Break("r_ok", b.remove("summary_started")),
    "phase_missing": Break("r_ok", b.alter("phase_changed", phase=None)),
    "plan_phase": Break("r_ok", b.alter("execution_plan_resolved", phase="evaluate")),
    "plan_twice": Break("r_ok", b.repeat("execution_plan_resolved")),
    "attempt_number": Break("r_ok", b.repeat("phase_changed", attempt=0)),
    "attempt_beyond_k": Break("r_ok", story.second_attempt),
    "attempt_started_twice": Break("r_ok", b.repeat("attempt_started")),
    "attempt_not_started": Break("r_ok", b.repeat("phase_changed", attempt=2)),
    "attempt_finished_twice": Break("r_ok", b.repeat("attempt_finished")),
    "late_attempt_event": Break("r_ok", story.late_phase),
    "attempt_open": Break("r_ok", b.remove("attempt_finished")),
    "attempt_cut_off": Break("p_429", b.remove("attempt_finished")),
    "retry_order": Break("r_retry2", b.alter("attempt_retry", payload={"retry": 2})),
    "retry_beyond_max": Break("p_429", story.retry_beyond),
    "retry_limit_differs": Break("r_retry2", b.alter("attempt_retry", payload={"max_retries": 3})),
    "retry_scope": Break("r_retry2", b.alter("attempt_retry", payload={"scope": "task"})),
    # -- counts
    "progress_missing": Break("r_ok", lambda run: (run / "progress.json").unlink()),
    "progress_unreadable": Break("r_ok", lambda run: (run / "progress.json").write_text("{") and None),
    "progress_behind": Break("r_ok", story.snapshot_behind),
    "progress_ahead": Break("r_kill_mid", b.edit_lines(lambda lines: lines[:-60])),
    "progress_drift": Break("r_ok", b.edit_progress(partials_saved=3)),
    "progress_fields": Break("r_ok", b.edit_progress(mood="good")),
    "counts_arithmetic": Break("r_ok", b.edit_progress(running_tasks=1)),
    "elapsed_implausible": Break("r_ok", b.edit_progress(elapsed_seconds=99.5)),
    # -- run_info
    "run_id_differs": Break("r_ok", b.edit_file("params.json", lambda params: params["output"].update(run_id="r_x"))),
    "directory_name": Break("r_ok", story.renamed_ids),
    "run_info_missing": Break("p_load", lambda run: (run / "run_info.json").unlink()),
    "run_info_unreadable": Break("r_ok", lambda run: (run / "run_info.json").write_text("[]") and None),
    "run_info_schema": Break("r_ok", b.edit_info(schema_version="agentcompass.run_info.v9")),
    "run_info_old_schema": Break("r_ok", b.edit_info(schema_version="agentcompass.run_info.v2")),
    "run_info_fields": Break("r_ok", b.drop_info("started_at")),
    "run_info_unknown_field": Break("r_ok", b.edit_info(note="x")),
    "run_info_status": Break("r_ok", b.edit_info(status="failed")),
    "status_without_end": Break("p_load", story.without_end_but_status),
    "run_info_error": Break("p_load", b.edit_info(error="another")),
    "run_info_times": Break("r_ok", b.edit_info(finished_at="2026-11-30T14:30:24+00:00")),
    "identity_differs": Break("r_ok", b.edit_file("run_info.json", lambda i: i["request"]["harness"].update(id="x"))),
    "plan_missing": Break("r_ok", b.edit_file("run_info.json", _no_plan)),
    "plan_differs": Break("r_ok", b.edit_file("run_info.json", b.other_plan)),
    "plan_unexplained": Break("r_ok", b.edit_file("run_info.json", _stray_plan)),
    "plan_shape": Break("r_ok", b.edit_file("run_info.json", _plan_key)),
    "reused_from_missing": Break("r_resumed", b.drop_info("reused_from")),
    "reused_source_missing": Break("r_resumed", lambda run: shutil.rmtree(run.parent / "r_kill_mid"), b.add_source),
    "reused_source_differs": Break("r_resumed", b.reuse_other_benchmark, b.add_source),
    "metrics_missing": Break("r_ok", lambda run: (run / "metrics.json").unlink()),
    "metric_artifacts_missing": Break("r_ok", b.drop_info("metric_artifacts")),
    "metrics_unreadable": Break("r_ok", lambda run: (run / "metrics.json").write_text("") and None),
    "metrics_differ": Break("r_ok", b.edit_file("metrics.json", lambda metrics: metrics.update(k=2))),
    # -- params
    "params_missing": Break("r_ok", lambda run: (run / "params.json").unlink()),
    "params_unreadable": Break("r_ok", lambda run: (run / "params.json").write_text("{") and None),
    "params_differ": Break("r_ok", b.edit_file("params.json", lambda params: params["model"].update(id="x"))),
    "private_parameter": Break("r_ok", b.edit_file("params.json", lambda params: params["model"].update(_client=1))),
    "params_extra": Break("r_ok", b.edit_file("params.json", lambda params: params.update(metadata={}))),
    # -- details
    "details_missing": Break("r_ok", lambda run: shutil.rmtree(run / "details")),
    "details_entry": Break("r_ok", lambda run: (run / "details" / "notes.txt").write_text("x") and None),
    "task_begun": Break("r_kill_mid", lambda run: (run / "details" / "running" / "begun--0").mkdir()),
    "task_file": Break("r_ok", lambda run: (b.task_dir(run) / "task.json").write_text("{") and None),
    "task_shape": Break("r_ok", lambda run: (b.task_dir(run) / "attempt-1" / "link").symlink_to("/etc")),
    "task_directory": Break("r_ok", b.rename_task),
    "task_in_two_states": Break("r_ok", lambda run: b.move_task(run, "normal", "error", copy=True)),
    "task_state": Break("r_ok", lambda run: b.move_task(run, "normal", "error")),
    "task_severity": Break("r_evalerr", b.alter(TASK, payload={"severity": "warning"})),
    "task_category": Break("r_ok", b.edit_task("task.json", lambda task: task.update(category="other"))),
    "task_left_running": Break("r_surrogate", lambda run: None),
    "task_saved_early": Break("r_ok", b.in_flight_result),
    "task_unknown": Break("r_ok", b.extra_task),
    "reused_tasks_differ": Break("r_resumed", b.extra_task),
    "task_result_missing": Break("r_ok", _no_partial),
    "attempt_plan_differs": Break("r_ok", b.edit_task("task.json", lambda task: task["attempt_plan"].update(k=2))),
    "attempt_result_missing": Break("r_retry2", story.drop_attempt),
    "result_missing": Break("r_ok", lambda run: (b.task_dir(run) / "attempt-1/result.json").unlink()),
    "result_file": Break("r_ok", b.edit_task("attempt-1/result.json", lambda result: result.update(status="fine"))),
    "retry_count": Break("r_ok", b.edit_task("attempt-1/result.json", lambda result: result.update(retry_count=4))),
    "retry_files": Break("r_retry2", lambda run: b.first_retries(run).unlink()),
    "retry_file": Break("r_retry2", b.edit_retry_file),
    # -- score
    "score_differs": Break(
        "r_retry2", b.edit_file("metrics.json", lambda metrics: metrics["series"][0].update(value=0.9))
    ),
    "score_not_checked": Break(
        "r_ok", b.edit_file("metrics.json", lambda metrics: metrics["series"][0].update(aggregation="ratio_of_sums"))
    ),
    "evaluation_failed": Break(
        "r_ok", b.edit_file("metrics.json", lambda metrics: metrics.update(evaluation_failed=True))
    ),
    "summary_missing": Break("r_ok", lambda run: (run / "summary.md").unlink()),
    "summary_differs": Break(
        "r_ok",
        lambda run: (
            (run / "summary.md").write_text((run / "summary.md").read_text().replace("Error:** 0", "Error:** 1"))
            and None
        ),
    ),
    # -- artifacts
    "checkpoint_file": Break("r_ok", lambda run: (b.attempt_dir(run) / "checkpoint.json").write_text("") and None),
    "checkpoint_old_schema": Break("r_ok", b.edit_evaluation(story.older_evaluation)),
    "checkpoint_identity": Break("r_ok", b.edit_evaluation(lambda evaluation: evaluation.update(attempt=2))),
    "checkpoint_mode": Break("r_ok", b.edit_evaluation(lambda e: e.update(source_evaluation_mode="later"))),
    "checkpoint_missing": Break("r_ok", lambda run: (b.attempt_dir(run) / "checkpoint.json").unlink()),
    "answer_differs": Break("r_ok", b.edit_task("*1/result.json", lambda result: result.update(final_answer="x"))),
    "artifact_manifest": Break("r_ok", b.edit_evaluation(lambda e: e["artifacts"].update(entries={})), b.add_artifacts),
    "artifact_directory": Break("r_ok", b.edit_evaluation(lambda e: e["artifacts"].update(directory="details/x"))),
    "artifacts_incomplete": Break("r_ok", b.edit_evaluation(lambda e: e["artifacts"].update(complete=False))),
    "artifact_differs": Break("r_ok", lambda run: b.artifact_of(run).write_bytes(b"x") and None, b.add_artifacts),
    "artifact_refused": Break("r_ok", _escape, b.add_artifacts),
    # -- logs and secrets
    "log_missing": Break("r_ok", lambda run: (run / "run.log").unlink()),
    "log_unreadable": Break("r_ok", lambda run: (run / "run.log").open("ab").write(b"\0" * 64 + b"\n") and None),
    "log_sink_failed": Break(
        "r_ok",
        lambda run: (
            (run / "run.log").open("a").write("14:30:24 WARNING  runtime.progress  Progress sink failed: x\n") and None
        ),
    ),
    "secret": Break(
        "r_ok",
        lambda run: (
            (run / "run.log")
            .open("a")
            .write("14:30:24 INFO x Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl\n")
            and None
        ),
    ),
}


def _unseal(line: bytes) -> bytes:
    return line.partition(b',"log":')[0] + b"}\n"
