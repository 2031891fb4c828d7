-- Which runs hold NaN metrics, or attempts without any metric?
WITH nan AS (
    SELECT run_key, count(*) AS metrics FROM metrics WHERE value IS NULL OR isnan(value) OR isinf(value) GROUP BY ALL
), bare AS (
    SELECT run_key, count(*) AS attempts
    FROM results
    WHERE NOT EXISTS (FROM metrics WHERE scope = 'attempt' AND metrics.run_key = results.run_key
        AND metrics.task_id = results.task_id AND metrics.attempt = results.attempt)
    GROUP BY ALL
)
SELECT run_key, coalesce(nan.metrics, 0) AS metrics_without_number, coalesce(bare.attempts, 0) AS attempts_without_metric
FROM nan FULL JOIN bare USING (run_key)
ORDER BY run_key
