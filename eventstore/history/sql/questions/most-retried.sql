-- Which tasks were retried most, at which phase, for what, and how much time did it cost?
-- :benchmark       only runs of this benchmark
-- :limit 20        how many to show
SELECT runs.benchmark, retries.task_id, retries.phase, retries.matched_pattern, count(*) AS retries,
       count(DISTINCT retries.run_key) AS runs, round(sum(retries.discarded_seconds), 3) AS discarded_seconds
FROM retries JOIN runs USING (run_key)
WHERE $benchmark IS NULL OR runs.benchmark = $benchmark
GROUP BY ALL
ORDER BY retries DESC, discarded_seconds DESC, runs.benchmark, retries.task_id, retries.phase
LIMIT CAST($limit AS BIGINT)
