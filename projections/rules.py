"""The rule catalogue: one table of everything that `verify` can find. Codes are stable.

A severity says what to do: an error is a contradiction or damage, so something in the directory is not true; a warning
is what a careful person would want to know (a killed run gives warnings); info explains. `implies` lists codes that one
and the same cause may bring along.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from eventstore.records import VERDICTS, Severity

Group: TypeAlias = Literal[
    "stream", "lifecycle", "counts", "run_info", "params", "details", "artifacts", "logs", "secrets"
]


class Rule(Struct, frozen=True):
    """One row: what it means, where the specification says so, an example of a message, what to do about it."""

    code: str
    severity: Severity
    group: Group
    sentence: str
    source: str
    example: str
    hint: str = ""
    implies: tuple[str, ...] = ()


_FORMAT = 'stream format, "Reading"'
_EVENTS = 'specification, "Events and Event-Specific Fields"'
_FIELDS = 'specification, "Fields on Every Event"'
_PROGRESS = 'specification, "progress.json"'
_RUN_INFO = 'specification, "run_info.json"'
_REUSE = 'specification, "Reuse validation"'
_METRICS = 'specification, "metric_artifacts Structure"'
_PLANS = 'specification, "resolved_execution_plans Structure"'
_PARAMS = 'specification, "params.json"'
_STREAM_LOSS = (
    "no_run_started", "no_terminal_event", "task_in_flight", "task_not_started", "attempt_not_started", "attempt_open",
    "progress_ahead", "progress_drift", "run_info_status", "status_without_end", "plan_unexplained", "out_of_order",
    "completed_with_open_task",
    "completed_but_incomplete", "completed_without_summary", "retry_order",
)  # fmt: skip
"""What follows where records of a stream are gone."""


def _verdict(code: str, sentence: str, example: str, hint: str, implies: tuple[str, ...] = ()) -> Rule:
    return Rule(code, VERDICTS[code], "stream", sentence, _FORMAT, example, hint, implies)


_REPAIR = "see what `compass-es repair` would do; a backup of the file may hold the line"

_ROWS = (
    # -- stream
    _verdict("torn_tail", "The stream ends in bytes without a newline.",
             "the last 17 bytes have no newline: a write was cut off",
             "nothing to do: the writer died or is at work, and the next one sets it aside", _STREAM_LOSS),
    _verdict("lost_acknowledged", "The stream lacks, or differs from, what once was on stable storage.",
             "8192 bytes up to seq 17 were on stable storage, 4096 are left", _REPAIR, _STREAM_LOSS),
    _verdict("corrupt_line", "A whole line is no event.", "the line is not JSON: Expecting value at byte 0 of the line",
             _REPAIR, (*_STREAM_LOSS, "gap", "chain_break")),
    _verdict("glued_line", "A line holds whole records beside bytes that are none.",
             "1 whole record on one line with 25 bytes that are none", _REPAIR, (*_STREAM_LOSS, "gap", "chain_break")),
    _verdict("digest_mismatch", "A sealed line is not what was written.",
             "the line was changed after it was written: its digest is not 5d2c000000000000", _REPAIR,
             (*_STREAM_LOSS, "chain_break", "gap")),
    _verdict("chain_break", "A sealed line was written after another line than the one before it.",
             "it was written after a line with digest a1f0…, not 5d2c…", _REPAIR, (*_STREAM_LOSS, "gap", "repeated")),
    _verdict("gap", "Sealed lines are missing.", "seq 12 follows 9: 2 lines are missing", _REPAIR, _STREAM_LOSS),
    _verdict("repeated", "A sealed line stands twice.", "seq 9 was there before",
             "the second copy is not counted; `compass-es repair` removes it", ("chain_break",)),
    _verdict("foreign_run", "A line belongs to another run.", "run_id is 'r_2', the stream's is 'r_1'",
             "two processes wrote one directory, or files were joined", _STREAM_LOSS),
    _verdict("unsealed_line", "A line without proof stands after lines that have one.",
             "a line without proof after lines that have one", "something else than the recorder wrote to the stream",
             ("chain_break", *_STREAM_LOSS)),
    _verdict("unsealed", "The lines carry no proof, so a changed line can't be told from a true one.",
             "the lines carry no proof: AgentCompass's own", "nothing to do: said once, so that you know"),
    Rule("stream_missing", "warning", "stream", "There is no progress.jsonl.",
         'specification, "When Files Are Created"',
         "there is no progress.jsonl", "the request failed before its first event, or the file was removed"),
    Rule("stream_unreadable", "error", "stream", "progress.jsonl can't be read at all.", _FORMAT,
         "is a folder, not a regular file", "", ("run_info_status",)),
    Rule("unreadable", "error", "stream", "A file or folder of the run can't be read.", _FORMAT,
         "Permission denied"),
    Rule("duplicate_key", "error", "stream", "A line names one member twice; the last value is used.", _FIELDS,
         "status stands twice in one object", "other readers may take the first value", ("progress_drift",)),
    Rule("clock_back", "warning", "stream", "Timestamps step back.", _FIELDS,
         "the clock stands 7199.982 s before the event before it", "durations across the step are not to be trusted"),
    Rule("silent_gap", "info", "stream", "Nothing was recorded for more than an hour.", _EVENTS,
         "5400 s passed without an event"),
    Rule("odd_timestamp", "error", "stream", "A timestamp is no moment in time.", _FIELDS,
         "timestamp nan is no moment in time", "", ("progress_drift",)),
    Rule("unknown_event", "info", "stream", "The specification has no event of this name.", _EVENTS,
         "the specification has no event 'task_paused'", "it is kept, and counts nothing"),
    Rule("analysis_stream", "info", "stream", "The stream is a re-analysis, not the evaluation's own.", _EVENTS,
         "the stream is a re-analysis: the evaluation's own stream is not here"),
    Rule("leftover_file", "warning", "stream", "A temporary file was left by a write that did not end.",
         'observed behaviour, "leftovers"', "a temporary file of a write that did not end"),
    # -- lifecycle
    Rule("no_run_started", "error", "lifecycle", "A stream begins with run_started.", _EVENTS,
         "the stream begins with tasks_loaded", "the first lines are missing", ("progress_drift", "out_of_order")),
    Rule("no_terminal_event", "warning", "lifecycle", "A run that is over has a run_finished.", _EVENTS,
         "the stream stops after 400 events without run_finished",
         "it was killed or is going on; `compass-es close` ends a run that died", ("progress_ahead", "task_in_flight",
         "status_without_end")),
    Rule("run_live", "info", "lifecycle", "The run is being written.", 'contract, "Life of a run"',
         "the writer lives: the lock is held by process 17"),
    Rule("run_restarted", "warning", "lifecycle", "A stream has one run_started.", _EVENTS,
         "run_started again, after the run had ended", "", ("progress_drift",)),
    Rule("event_after_end", "error", "lifecycle", "Nothing follows run_finished.", _EVENTS,
         "phase_changed after run_finished", "",
         ("task_not_started", "late_event", "progress_drift", "repeated_event", "out_of_order", "task_finished_twice")),
    Rule("repeated_event", "error", "lifecycle", "An event of the run as a whole comes once.", _EVENTS,
         "tasks_loaded again", "", ("out_of_order", "progress_drift", "event_after_end")),
    Rule("out_of_order", "error", "lifecycle", "Loading comes before tasks, and tasks before the summary.", _EVENTS,
         "task_started before tasks_loaded", "", ("progress_drift", "no_run_started")),
    Rule("payload_incomplete", "error", "lifecycle", "A payload has the members that the specification names.", _EVENTS,
         "attempt_retry without retry", "", ("progress_drift", "position_mismatch", "identity_differs")),
    Rule("unknown_status", "error", "lifecycle", "A status is one that the specification names.", _EVENTS,
         "task_finished with status 'done'", "", ("progress_drift", "run_info_status", "no_terminal_event")),
    Rule("unknown_severity", "error", "lifecycle", "A severity is fatal, error, warning or empty.", _EVENTS,
         "task_finished with severity 'grave'", "", ("progress_drift", "task_state", "task_severity")),
    Rule("severity_against_status", "error", "lifecycle", "A fatal issue fails its task, a lesser one does not.",
         _PROGRESS,
         "status completed with severity fatal", "", ("progress_drift", "task_state", "task_severity")),
    Rule("reuse_arithmetic", "error", "lifecycle", "Reused tasks and tasks to run make up the loaded ones.", _EVENTS,
         "9 reused and 50 to run are not the 60 that were loaded", "", ("progress_drift", "completed_but_incomplete")),
    Rule("more_tasks_than_loaded", "error", "lifecycle", "No more tasks start or are reused than were loaded.",
         _PROGRESS,
         "more tasks start or are reused than the 60 that were loaded", "",
         ("completed_but_incomplete", "reuse_arithmetic", "progress_drift")),
    Rule("no_task_id", "error", "lifecycle", "An event of a task names the task.", _FIELDS,
         "task_finished without a task_id", "", ("progress_drift", "completed_with_open_task", "task_in_flight")),
    Rule("task_started_twice", "error", "lifecycle", "A task starts once.", _EVENTS, "the task had started before", "",
         ("progress_drift", "more_tasks_than_loaded", "index_repeated")),
    Rule("task_not_started", "error", "lifecycle", "An event of a task follows its task_started.", _EVENTS,
         "phase_changed of a task that never started", "", ("progress_drift", "completed_but_incomplete")),
    Rule("task_finished_twice", "error", "lifecycle", "A task finishes once.", _EVENTS,
         "the task had finished before", "",
         ("progress_drift",)),
    Rule("late_event", "error", "lifecycle", "Nothing follows a task's task_finished.", _EVENTS,
         "phase_changed after the task finished", "", ("progress_drift", "attempt_open", "attempt_cut_off")),
    Rule("position_mismatch", "error", "lifecycle", "index and total are the same at start and finish.", _EVENTS,
         "index 3 of 12, at the start it was 2 of 12", ""),
    Rule("index_repeated", "error", "lifecycle", "No two tasks have one index.", _EVENTS,
         "index 3 is also the index of task 'arith-002'", "", ("position_mismatch",)),
    Rule("category_changed", "error", "lifecycle", "A task keeps its category.", _FIELDS,
         "category 'hard', at the start it was 'easy'", ""),
    Rule("task_in_flight", "warning", "lifecycle", "A task had not finished when its run ended or died.", _PROGRESS,
         "the task had not finished when the stream ended: attempt 1 going on, last in run_harness",
         "`compass-es diagnose` shows what it was doing"),
    Rule("completed_with_open_task", "error", "lifecycle", "A completed run has no open task.", _EVENTS,
         "the run completed although this task has not finished", "", ("completed_but_incomplete", "progress_drift")),
    Rule("completed_but_incomplete", "error", "lifecycle", "A completed run has finished or reused every task.",
         _PROGRESS,
         "the run completed with 58 tasks finished or reused of 60 loaded", "", ("progress_drift",)),
    Rule("completed_without_summary", "warning", "lifecycle", "A completed run was summed up.", _EVENTS,
         "the run completed, and summary_started is not there"),
    Rule("phase_missing", "error", "lifecycle", "A phase_changed names the phase.", _EVENTS,
         "phase_changed with phase None", ""),
    Rule("plan_phase", "error", "lifecycle", "A plan is resolved in phase plan.", _EVENTS,
         "execution_plan_resolved with phase 'evaluate'"),
    Rule("plan_twice", "warning", "lifecycle", "An attempt resolves one plan.", _EVENTS,
         "a second plan of one attempt", "",
         ("plan_differs",)),
    Rule("attempt_number", "error", "lifecycle", "Attempts are numbered from 1.", _FIELDS,
         "attempt_started with attempt 0", "",
         ("attempt_not_started", "attempt_open", "plan_missing", "plan_unexplained", "attempt_cut_off")),
    Rule("attempt_beyond_k", "error", "lifecycle", "No attempt has a number above the plan's k.", _RUN_INFO,
         "attempt 4 of k = 3", "",
         ("attempt_not_started", "attempt_open", "plan_missing", "attempt_cut_off", "plan_unexplained")),
    Rule("attempt_started_twice", "error", "lifecycle", "An attempt starts once.", _EVENTS,
         "the attempt had started before",
         "", ("progress_drift", "plan_twice", "attempt_not_started", "attempt_open")),
    Rule("attempt_not_started", "error", "lifecycle", "An event of an attempt follows its attempt_started.", _EVENTS,
         "phase_changed of an attempt that never started", "", ("progress_drift", "attempt_open", "attempt_cut_off")),
    Rule("attempt_finished_twice", "error", "lifecycle", "An attempt finishes once.", _EVENTS,
         "attempt_finished after the attempt finished", "", ("progress_drift", "attempt_open")),
    Rule("late_attempt_event", "error", "lifecycle", "Nothing follows an attempt's attempt_finished.", _EVENTS,
         "phase_changed after the attempt finished", "", ("plan_twice",)),
    Rule("attempt_open", "error", "lifecycle", "A completed task's attempts have finished.", _EVENTS,
         "the task finished as 'completed', attempt 2 has no attempt_finished", "", ("progress_drift",)),
    Rule("attempt_cut_off", "warning", "lifecycle", "A failed task's attempt never finished.", _EVENTS,
         "the task finished as 'failed', attempt 1 has no attempt_finished"),
    Rule("retry_order", "error", "lifecycle", "Retries of an attempt count up from 1.", _EVENTS, "retry 3 after 1", "",
         ("retry_beyond_max", "retry_count")),
    Rule("retry_beyond_max", "error", "lifecycle", "No retry is beyond max_retries.", _EVENTS, "retry 3 of at most 2",
         "",
         ("retry_order", "retry_limit_differs", "retry_count")),
    Rule("retry_limit_differs", "error", "lifecycle", "max_retries is the request's.", _RUN_INFO,
         "max_retries 3, the request says 2", "", ("retry_beyond_max",)),
    Rule("retry_scope", "error", "lifecycle", "A retry's scope is attempt or evaluate.", _EVENTS, "scope 'task'"),
    # -- counts
    Rule("progress_missing", "warning", "counts", "A stream with events has a progress.json.", _PROGRESS,
         "there is no progress.json", "`compass-es replay` rebuilds it"),
    Rule("progress_unreadable", "error", "counts", "progress.json is a JSON object.", _PROGRESS,
         "is empty", "`compass-es replay` rebuilds it"),
    Rule("progress_behind", "warning", "counts", "progress.json is the state before the stream's last events.",
         _PROGRESS,
         "is the state after 399 of 400 events", "`compass-es replay` rebuilds it"),
    Rule("progress_ahead", "error", "counts", "progress.json knows of events that the stream has lost.", _PROGRESS,
         "finished_tasks is 9 in progress.json, the stream has 8", "events are gone: don't rebuild it from the stream",
         ("progress_drift", "no_terminal_event", "task_in_flight")),
    Rule("progress_drift", "error", "counts", "A field of progress.json is not what the stream says.", _PROGRESS,
         "finished_tasks is 8, the stream says 9", "`compass-es replay` rebuilds it", ("counts_arithmetic",)),
    Rule("progress_fields", "warning", "counts", "progress.json has exactly the specified fields.", _PROGRESS,
         "fields missing: skipped_tasks", "", ("progress_drift",)),
    Rule("counts_arithmetic", "error", "counts", "The counts of progress.json add up.", _PROGRESS,
         "finished_tasks 9 is not completed 7 + failed 1 + skipped 0", "", ("progress_drift", "progress_ahead")),
    Rule("elapsed_implausible", "warning", "counts", "elapsed_seconds counts from just before the first event.",
         _PROGRESS,
         "elapsed_seconds is 9.5: counted from -8.000 s before the first event"),
    # -- run_info
    Rule("run_id_differs", "error", "run_info", "All files of a directory have one run id.", _RUN_INFO,
         "run_id is 'r_2', the stream's is 'r_1'", "", ("progress_drift", "reused_source_missing", "foreign_run")),
    Rule("directory_name", "info", "run_info", "The directory is named by its run id.", _RUN_INFO,
         "the directory is 'copy-of-r_1', the run id 'r_1'", "it was copied or renamed, or is a re-analysis"),
    Rule("run_info_missing", "error", "run_info", "A run directory has a run_info.json.",
         'specification, "When Files Are Created"', "there is no run_info.json",
         "`compass-es replay` rebuilds what it can"),
    Rule("run_info_unreadable", "error", "run_info", "run_info.json is a JSON object.", _RUN_INFO, "is empty",
         "`compass-es replay` rebuilds what it can"),
    Rule("run_info_schema", "error", "run_info", "The schema is agentcompass.run_info.v3.", _RUN_INFO,
         "schema_version is 'agentcompass.run_info.v9'"),
    Rule("run_info_old_schema", "info", "run_info", "The schema is v2: read, never written.", _RUN_INFO,
         "schema_version is 'agentcompass.run_info.v2'"),
    Rule("run_info_fields", "error", "run_info", "The required fields are there.", _RUN_INFO,
         "fields missing: request", "",
         ("run_id_differs", "identity_differs", "run_info_times", "params_differ")),
    Rule("run_info_unknown_field", "info", "run_info", "A field that the specification doesn't name.", _RUN_INFO,
         "fields beyond the specification: note"),
    Rule("run_info_status", "error", "run_info", "The status is that of the terminal event.", _RUN_INFO,
         "status is 'completed', run_finished says 'failed'", "`compass-es replay` takes the stream's",
         ("progress_drift", "progress_ahead", "no_terminal_event", "task_in_flight", "run_info_error",
         "run_info_times")),
    Rule("status_without_end", "warning", "run_info", "A final status has its run_finished.", _RUN_INFO,
         "status is 'completed', and the stream has no run_finished",
         "the file is written first: the run died in between, or the stream lost its end",
         ("no_terminal_event", "progress_ahead", "task_in_flight", "progress_drift")),
    Rule("run_info_error", "error", "run_info", "The error is that of the terminal event.", _RUN_INFO,
         "error is 'x', run_finished says 'y'"),
    Rule("run_info_times", "warning", "run_info", "started_at and finished_at are moments that fit the stream.",
         _RUN_INFO,
         "finished_at is 2026-11-29T14:31:18+00:00, 7199 s from run_finished", "", ("clock_back",)),
    Rule("identity_differs", "error", "run_info", "Component ids are the request's.", _EVENTS,
         "model is 'toy-7b' in run_started, 'toy-13b' in run_info.json", "", ("progress_drift", "params_differ")),
    Rule("plan_missing", "error", "run_info", "A resolved plan is in run_info.json.", _PLANS,
         "the plan of the event is not in run_info.json", "`compass-es replay` adds it"),
    Rule("plan_differs", "error", "run_info", "A recorded plan is the event's.", _PLANS,
         "environment.id is 'docker', the event says 'host_process'"),
    Rule("plan_unexplained", "warning", "run_info", "A recorded plan has an event, or its task is reused.", _PLANS,
         "a plan without an event, and nothing was reused", "the run died between both writes, or events are missing"),
    Rule("plan_shape", "error", "run_info", "Plans are kept by task id and attempt number from 1.", _PLANS,
         "attempt 'x' is no number from 1", "", ("plan_missing", "plan_unexplained")),
    Rule("reused_from_missing", "error", "run_info", "A run that reused tasks names its source.", _RUN_INFO,
         "9 tasks were reused, and reused_from is not there", "", ("plan_unexplained",)),
    Rule("reused_source_missing", "info", "run_info", "The source of the reused tasks can be found.", _REUSE,
         "run 'r_1' is not beside this one", "results of reused tasks can't be compared with their source"),
    Rule("reused_source_differs", "error", "run_info", "The source has the same benchmark and attempts plan.", _REUSE,
         "the source's benchmark is 'a', this run's 'b'", "", ("identity_differs", "params_differ", "metrics_differ")),
    Rule("metrics_missing", "error", "run_info", "metric_artifacts has a metrics.json.", _METRICS,
         "metric_artifacts is there, metrics.json is not"),
    Rule("metric_artifacts_missing", "error", "run_info", "metrics.json has its metric_artifacts.", _METRICS,
         "metrics.json is there, metric_artifacts is not"),
    Rule("metrics_unreadable", "error", "run_info", "metrics.json is a JSON object.", _METRICS, "is empty"),
    Rule("metrics_differ", "error", "run_info", "metrics.json was made by the recorded report plan.", _METRICS,
         "k is 3 in metrics.json, 2 in metric_artifacts.report", "", ("params_differ", "reused_source_differs")),
    # -- params
    Rule("params_missing", "warning", "params", "A run with task details has a params.json.", _PARAMS,
         "there are task details, and no params.json"),
    Rule("params_unreadable", "error", "params", "params.json is a JSON object.", _PARAMS, "is empty"),
    Rule("params_differ", "error", "params", "params.json is a part of the request.", _PARAMS,
         "model.id is 'a', the request says 'b'", "", ("identity_differs", "run_id_differs", "reused_source_differs")),
    Rule("params_extra", "warning", "params", "params.json has only the sections that the specification names.",
         _PARAMS,
         "sections beyond the specification: harness"),
)  # fmt: skip

RULES: dict[str, Rule] = {rule.code: rule for rule in _ROWS}
"""Every rule by its code, in the order of their groups."""
assert len(RULES) == len(_ROWS)
