-- Which environments give more attempts with an error than the average of their benchmark?
WITH attempt AS (
    SELECT runs.benchmark, runs.environment, coalesce(results.severity IN ('fatal', 'error'), false) AS failed
    FROM results JOIN runs USING (run_key)
    WHERE results.state IS DISTINCT FROM 'running'
), environment AS (
    SELECT benchmark, environment, count(*) AS attempts, sum(failed::INT) AS failed FROM attempt GROUP BY ALL
), average AS (
    SELECT benchmark, sum(failed) / sum(attempts) AS average FROM environment GROUP BY ALL
)
SELECT benchmark, environment, attempts, round(failed / attempts, 4) AS rate, round(average, 4) AS average,
       failed / attempts > average AS above
FROM environment JOIN average USING (benchmark)
ORDER BY benchmark, rate DESC, environment
