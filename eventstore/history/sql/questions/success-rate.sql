-- How often do answered attempts succeed by model and harness, with a 95 % interval, and how many were not answered?
-- :metric correct     an attempt succeeds where this metric is above 0
WITH counted AS (
    SELECT benchmark, model, harness,
           sum(coalesce(answered + infrastructure_failed + never_run,
               total_tasks * coalesce(attempts_k, 1), 0))::BIGINT AS planned,
           coalesce(sum(infrastructure_failed), 0)::BIGINT AS infrastructure_failed,
           coalesce(sum(never_run), 0)::BIGINT AS never_run,
           count(*) FILTER (answered IS NULL) AS without_details, count(*) AS runs
    FROM runs
    GROUP BY ALL
), rate AS (
    SELECT runs.benchmark, runs.model, runs.harness, count(metrics.value) AS n,
           count(*) FILTER (metrics.value > 0) AS successes
    FROM results JOIN runs USING (run_key)
    LEFT JOIN metrics ON metrics.run_key = results.run_key AND metrics.task_id = results.task_id
        AND metrics.attempt = results.attempt AND metrics.scope = 'attempt' AND metrics.metric = $metric
        AND NOT isnan(metrics.value)
    WHERE results.outcome = 'answered'
    GROUP BY ALL
), joined AS (
    SELECT counted.*, coalesce(rate.n, 0) AS n, coalesce(rate.successes, 0) AS successes
    FROM counted LEFT JOIN rate ON counted.benchmark IS NOT DISTINCT FROM rate.benchmark
        AND counted.model IS NOT DISTINCT FROM rate.model AND counted.harness IS NOT DISTINCT FROM rate.harness
)
SELECT benchmark, model, harness, n, planned, successes, infrastructure_failed, never_run,
       CASE WHEN n > 0 THEN round(successes / n, 4) END AS rate,
       CASE WHEN n > 0 THEN
           round((successes + 1.9208 - 1.96 * sqrt(successes * (n - successes) / n + 0.9604)) / (n + 3.8416), 4)
       END AS low,
       CASE WHEN n > 0 THEN
           round((successes + 1.9208 + 1.96 * sqrt(successes * (n - successes) / n + 0.9604)) / (n + 3.8416), 4)
       END AS high,
       CASE WHEN without_details = runs THEN 'the task details are not stored'
            WHEN without_details > 0 THEN without_details || ' of ' || runs || ' runs have no task details'
            WHEN n = 0 THEN 'no attempt was answered with this metric' END AS reason
FROM joined
ORDER BY benchmark, model, harness
