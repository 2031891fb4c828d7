-- Which runs died without a final status, and how far were they?
SELECT run_key, life, status, finished_tasks, total_tasks,
       round(100.0 * finished_tasks / nullif(total_tasks, 0), 1) AS percent_done, running_tasks, last_event_at
FROM runs
WHERE life NOT IN ('finished', 'live', 'stalled')
ORDER BY run_key
