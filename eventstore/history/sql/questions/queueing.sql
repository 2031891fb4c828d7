-- How long did tasks wait between the loading of tasks and their start?
WITH loaded AS (SELECT run_key, min("timestamp") AS loaded_at FROM events WHERE event = 'tasks_loaded' GROUP BY ALL)
SELECT run_key, count(*) AS tasks,
       round(median(epoch(started_at) - epoch(loaded_at)) FILTER (started_at >= loaded_at), 3) AS median_wait,
       round(max(epoch(started_at) - epoch(loaded_at)) FILTER (started_at >= loaded_at), 3) AS longest_wait,
       count(*) FILTER (started_at < loaded_at) AS clock_stepped
FROM tasks JOIN loaded USING (run_key)
WHERE started_at IS NOT NULL
GROUP BY ALL
ORDER BY longest_wait DESC, run_key
