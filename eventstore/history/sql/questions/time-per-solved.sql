-- How much wall time does a solved task cost by model, and how much was spent on discarded tries?
-- :metric correct     a task is solved where this metric is above 0 in any attempt
WITH solved AS (
    SELECT run_key, count(DISTINCT task_id) AS solved
    FROM metrics
    WHERE scope = 'attempt' AND metric = $metric AND value > 0 AND NOT isnan(value)
    GROUP BY ALL
), spent AS (SELECT run_key, sum(seconds) AS seconds FROM attempts WHERE seconds >= 0 GROUP BY ALL),
lost AS (SELECT run_key, sum(discarded_seconds) AS seconds FROM retries GROUP BY ALL)
SELECT runs.benchmark, runs.model, count(*) AS runs, sum(solved.solved) AS solved_tasks,
       round(sum(spent.seconds), 3) AS attempt_seconds,
       round(sum(spent.seconds) / nullif(sum(solved.solved), 0), 3) AS seconds_per_solved,
       round(coalesce(sum(lost.seconds), 0), 3) AS discarded_seconds
FROM runs LEFT JOIN solved USING (run_key) LEFT JOIN spent USING (run_key) LEFT JOIN lost USING (run_key)
GROUP BY ALL
ORDER BY ALL
