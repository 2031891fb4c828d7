-- Where is the evidence for a task: events, log lines, results and files, in order of time?
-- :run      run_key
-- :task     task_id
SELECT * FROM (
    SELECT "timestamp" AS moment, 'event' AS kind, event || coalesce(' ' || phase, '') AS what, attempt, line,
           'progress.jsonl' AS file
    FROM events WHERE run_key = $run AND task_id = $task
    UNION ALL BY NAME
    SELECT logged_at AS moment, 'log' AS kind, level || ' ' || left(message, 150) AS what, line, 'run.log' AS file
    FROM logs WHERE run_key = $run AND task_id = $task
    UNION ALL BY NAME
    SELECT 'result' AS kind, status AS what, attempt, file FROM results WHERE run_key = $run AND task_id = $task
    UNION ALL BY NAME
    SELECT modified_at AS moment, kind, bytes || ' bytes' AS what, attempt, file
    FROM artifacts WHERE run_key = $run AND task_id = $task
)
ORDER BY moment NULLS LAST, kind, line, file
