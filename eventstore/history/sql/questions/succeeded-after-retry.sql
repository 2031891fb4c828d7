-- Which attempts succeeded only after a retry (so their score is not that of a first try)?
-- :metric correct     an attempt succeeds where this metric is above 0
SELECT attempts.run_key, attempts.task_id, attempts.attempt, attempts.retries, metrics.value
FROM attempts JOIN metrics USING (run_key, task_id, attempt)
WHERE attempts.retries > 0 AND metrics.scope = 'attempt' AND metrics.metric = $metric AND metrics.value > 0
ORDER BY ALL
