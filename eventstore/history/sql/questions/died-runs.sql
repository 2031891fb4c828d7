-- Which runs died without a final status of their own, and how far were they?
SELECT run_key, life, status, finished_tasks, total_tasks,
       round(100.0 * finished_tasks / nullif(total_tasks, 0), 1) AS percent_done, running_tasks, last_event_at, closed IS NOT NULL AS closed_later
FROM runs
WHERE life NOT IN ('finished', 'live', 'stalled') OR closed IS NOT NULL
ORDER BY run_key
