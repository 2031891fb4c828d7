-- The views of a history. Columns are documented in docs/sql.md and stay stable; `store` is the database that holds the
-- tables (a catalog, or memory), `lives` the life of runs that have not finished, as it is now.

-- One row for each run directory.
CREATE VIEW runs AS
SELECT
    run_key, run_id, benchmark, harness, environment, model,
    status,
    CASE WHEN finished THEN 'finished' ELSE lives.life END AS life,
    total_tasks, reused_tasks, pending_tasks, running_tasks, finished_tasks, completed_tasks, failed_tasks,
    error_tasks, warning_tasks, skipped_tasks, attempts_started, attempts_finished, partials_saved,
    retries,
    started_at, finished_at, last_event_at, seconds, clock_stepped, longest_gap_seconds, longest_gap_seq, error, score,
    answered, infrastructure_failed, never_run, score_answered,
    attempts_k, attempts_strategy, reused_from_run_id, reused_from_path,
    orchestration_id, request_key, request_name, request_index,
    schema_version, stored_status, analysis_only, sealed, events, damaged, torn_bytes, bytes,
    CASE WHEN finished THEN 'the run has a final status' ELSE lives.evidence END AS life_evidence,
    path, request, metric_artifacts, closed, source
FROM store.main.runs LEFT JOIN lives USING (run_key);

-- Every record that scan accepted, in the order of its stream by seq.
CREATE VIEW events AS
SELECT
    r.run_key, seq, line, "offset", r.run_id, event, "timestamp", task_id, category, attempt, phase, e.status, payload,
    CASE WHEN own_context THEN e.orchestration_id ELSE r.orchestration_id END AS orchestration_id,
    CASE WHEN own_context THEN e.request_key ELSE r.request_key END AS request_key,
    CASE WHEN own_context THEN e.request_name ELSE r.request_name END AS request_name,
    CASE WHEN own_context THEN e.request_index ELSE r.request_index END AS request_index,
    coalesce(payload_text, CAST(payload AS VARCHAR)) AS payload_text, extra, r.source
FROM store.main.events AS e JOIN store.main.runs AS r USING (run_no);

-- One row for each task that a stream speaks of.
CREATE VIEW tasks AS
SELECT
    run_key, task_id, category, status, severity, position, started_at, finished_at, seconds, attempts,
    attempts_finished, retries, starts, finishes, partials_saved, last_phase, last_event_at, last_seq,
    seconds IS NULL AND coalesce(finished_at < started_at, false) AS clock_stepped, source
FROM store.main.tasks JOIN (SELECT run_no, run_key, source FROM store.main.runs) USING (run_no);

-- One row for each evaluation attempt of a task.
CREATE VIEW attempts AS
SELECT
    run_key, task_id, attempt, category, status, started_at,
    CASE WHEN ended_by IS NULL AND NOT finished AND coalesce(lives.life NOT IN ('live', 'stalled'), true)
        THEN started_at + to_microseconds(CAST(round(seconds * 1e6) AS BIGINT)) ELSE finished_at END AS finished_at,
    seconds, starts, retries, phases, last_phase,
    coalesce(ended_by, CASE WHEN finished THEN 'nothing' WHEN lives.life IN ('live', 'stalled') THEN 'running'
        ELSE 'died' END) AS ended_by,
    seconds IS NULL AND coalesce(finished_at < started_at, false) AS clock_stepped, source
FROM store.main.attempts JOIN (SELECT run_no, run_key, finished, source FROM store.main.runs) USING (run_no)
    LEFT JOIN lives USING (run_key);

-- One row for each stay in a phase. ended_by is the event that ended it; died: its process was gone before it ended.
CREATE VIEW phases AS
SELECT
    run_key, seq, task_id, attempt, category, phase, started_at,
    CASE WHEN ended_by IS NULL AND NOT finished AND coalesce(lives.life NOT IN ('live', 'stalled'), true)
        THEN started_at + to_microseconds(CAST(round(seconds * 1e6) AS BIGINT)) ELSE ended_at END AS ended_at,
    seconds,
    coalesce(ended_by, CASE WHEN finished THEN 'nothing' WHEN lives.life IN ('live', 'stalled') THEN 'running'
        ELSE 'died' END) AS ended_by,
    ended_seq, updates, status, error, seconds IS NULL AND coalesce(ended_at < started_at, false) AS clock_stepped,
    source
FROM (
    SELECT
        run_no, seq, task_id, attempt, category, coalesce(nullif(phase, ''), 'running') AS phase,
        "timestamp" AS started_at,
        "timestamp" + to_microseconds(CAST(round(stay_seconds * 1e6) AS BIGINT)) AS ended_at,
        stay_seconds AS seconds,
        ['phase_changed', 'attempt_started', 'attempt_retry', 'attempt_finished', 'task_started', 'task_finished',
            'run_finished'][stay_ended_by] AS ended_by,
        seq + stay_records AS ended_seq, 1 AS updates, status, CAST(NULL AS VARCHAR) AS error
    FROM store.main.events WHERE stay_seconds IS NOT NULL
    UNION ALL
    SELECT
        run_no, seq, task_id, attempt, category, phase, started_at, ended_at, seconds, ended_by, ended_seq, updates,
        status, error
    FROM store.main.phases
) JOIN (SELECT run_no, run_key, finished, source FROM store.main.runs) USING (run_no)
    LEFT JOIN lives USING (run_key);

-- One row for each runtime retry.
CREATE VIEW retries AS
SELECT
    run_key, seq, task_id, attempt, category, retried_at, retry, max_retries, stage, scope, matched_pattern,
    retry_delay_seconds, phase, discarded_seconds, retry_detail, source
FROM store.main.retries JOIN (SELECT run_no, run_key, source FROM store.main.runs) USING (run_no);

-- One row for each resolved execution plan.
CREATE VIEW plans AS
SELECT
    run_key, task_id, attempt, category, source, seq, resolved_at, environment, evaluation_environment,
    evaluation_environment_mode, network_policy, run_network_policy, verifier_network_policy, applied_recipes,
    run_timeout_seconds, evaluation_timeout_seconds, plan
FROM store.main.plans JOIN store.main.plan_texts USING (run_no, plan_no)
    JOIN (SELECT run_no, run_key FROM store.main.runs) USING (run_no);

-- One row for each result.json, without its trajectory.
CREATE VIEW results AS
SELECT
    run_key, task_id, attempt, category, state, status, severity, outcome, issues, retries, final_answer, ground_truth, metrics,
    meta, analysis_result, result_bytes, file, source
FROM store.main.results JOIN (SELECT run_no, run_key, source FROM store.main.runs) USING (run_no);

-- One row for each issue of a result.
CREATE VIEW issues AS
SELECT run_key, task_id, attempt, category, number, severity, phase, code, message, source FROM store.main.issues JOIN (SELECT run_no, run_key, source FROM store.main.runs) USING (run_no);

-- One row for each number: of an attempt's result, of the run, of a category of the run.
CREATE VIEW metrics AS
SELECT
    run_key, scope, task_id, attempt, category, metric, reducer, k, role, TRY_CAST(value AS DOUBLE) AS value,
    total, evaluated, errors, raw, source
FROM store.main.metrics JOIN (SELECT run_no, run_key, source FROM store.main.runs) USING (run_no);

-- One row for each leaf of the request, name being its path.
CREATE VIEW params AS
SELECT run_key, name, value, source, raw FROM store.main.params JOIN (SELECT run_no, run_key FROM store.main.runs) USING (run_no);

-- One row for each message of run.log.
CREATE VIEW logs AS
SELECT run_key, line, "time", logged_at, level, logger, task_id, message, source FROM store.main.logs JOIN (SELECT run_no, run_key, source FROM store.main.runs) USING (run_no);

-- One row for each file below an attempt's artifacts or retries.
CREATE VIEW artifacts AS
SELECT run_key, task_id, attempt, kind, file, bytes, modified_at, source FROM store.main.artifacts JOIN (SELECT run_no, run_key, source FROM store.main.runs) USING (run_no);

-- One row for each thing that is damaged, with its place.
CREATE VIEW damage AS
SELECT run_key, file, line, "offset", length, code, severity, message, seq, source FROM store.main.damage JOIN (SELECT run_no, run_key, source FROM store.main.runs) USING (run_no);
