-- How often do attempts succeed by model and harness, attempts with a fatal or error issue left out, with a 95 % interval?
-- :metric correct     an attempt succeeds where this metric is above 0
WITH attempt AS (
    SELECT runs.benchmark, runs.model, runs.harness, coalesce(results.severity IN ('fatal', 'error'), false) AS faulty,
           metrics.value > 0 AS success
    FROM results JOIN runs USING (run_key)
    LEFT JOIN metrics ON metrics.run_key = results.run_key AND metrics.task_id = results.task_id
        AND metrics.attempt = results.attempt AND metrics.scope = 'attempt' AND metrics.metric = $metric
        AND NOT isnan(metrics.value)
    WHERE results.state IS DISTINCT FROM 'running'
), rate AS (
    SELECT benchmark, model, harness, count(*) FILTER (NOT faulty AND success IS NOT NULL) AS n,
           count(*) FILTER (NOT faulty AND success) AS successes, count(*) FILTER (faulty) AS left_out
    FROM attempt
    GROUP BY ALL
)
SELECT benchmark, model, harness, n, successes, left_out, round(successes / n, 4) AS rate,
       round((successes + 1.9208 - 1.96 * sqrt(successes * (n - successes) / n + 0.9604)) / (n + 3.8416), 4) AS low,
       round((successes + 1.9208 + 1.96 * sqrt(successes * (n - successes) / n + 0.9604)) / (n + 3.8416), 4) AS high
FROM rate
ORDER BY ALL
