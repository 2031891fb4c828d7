-- How is time spent over phases in the slowest attempts?
-- :slowest 0.05     the share of attempts that is slowest
WITH slow AS (
    SELECT run_key, task_id, attempt
    FROM attempts
    WHERE seconds IS NOT NULL
    QUALIFY percent_rank() OVER (ORDER BY seconds DESC) <= CAST($slowest AS DOUBLE)
)
SELECT phases.phase, count(*) AS stays, round(sum(phases.seconds), 3) AS seconds,
       round(sum(phases.seconds) / sum(sum(phases.seconds)) OVER (), 4) AS share
FROM phases JOIN slow USING (run_key, task_id, attempt)
GROUP BY ALL
ORDER BY seconds DESC, phases.phase
