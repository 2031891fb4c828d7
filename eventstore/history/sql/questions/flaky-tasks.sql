-- Which tasks are solved in some runs of a model and not in others?
-- :metric correct     an attempt succeeds where this metric is above 0
WITH outcome AS (
    SELECT runs.benchmark, runs.model, results.run_key, results.task_id,
           bool_or(coalesce(metrics.value > 0 AND NOT isnan(metrics.value), false)) AS solved
    FROM results JOIN runs USING (run_key)
    LEFT JOIN metrics ON metrics.run_key = results.run_key AND metrics.task_id = results.task_id
        AND metrics.attempt = results.attempt AND metrics.scope = 'attempt' AND metrics.metric = $metric
    WHERE results.state IS DISTINCT FROM 'running'
    GROUP BY ALL
)
SELECT benchmark, model, task_id, count(*) AS runs, count(*) FILTER (solved) AS solved_in
FROM outcome
GROUP BY ALL
HAVING solved_in BETWEEN 1 AND runs - 1
ORDER BY benchmark, model, task_id
