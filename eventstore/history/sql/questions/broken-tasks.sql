-- Which tasks fail in every run that finished them?
-- :metric correct     an attempt succeeds where this metric is above 0
-- :min_runs 2         at least in so many runs
WITH outcome AS (
    SELECT runs.benchmark, results.run_key, results.task_id,
           bool_or(coalesce(metrics.value > 0 AND NOT isnan(metrics.value), false)) AS solved
    FROM results JOIN runs USING (run_key)
    LEFT JOIN metrics ON metrics.run_key = results.run_key AND metrics.task_id = results.task_id
        AND metrics.attempt = results.attempt AND metrics.scope = 'attempt' AND metrics.metric = $metric
    WHERE results.state IS DISTINCT FROM 'running'
    GROUP BY ALL
)
SELECT benchmark, task_id, count(*) AS runs
FROM outcome
GROUP BY ALL
HAVING NOT bool_or(solved) AND count(*) >= CAST($min_runs AS BIGINT)
ORDER BY runs DESC, benchmark, task_id
