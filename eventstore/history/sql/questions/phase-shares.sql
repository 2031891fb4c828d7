-- How is time spent over phases in the slowest attempts?
-- :slowest 0.05     the share of attempts that is slowest
WITH slow AS (
    SELECT run_key, task_id, attempt
    FROM attempts
    WHERE seconds >= (SELECT quantile_disc(seconds, 1 - CAST($slowest AS DOUBLE)) FROM attempts)
)
SELECT phase, count(*) AS stays, round(sum(phases.seconds), 3) AS seconds,
       round(sum(phases.seconds) / sum(sum(phases.seconds)) OVER (), 4) AS share
FROM phases SEMI JOIN slow USING (run_key, task_id, attempt)
GROUP BY ALL
ORDER BY seconds DESC, phase
