-- How long does a phase take: median, 95 %, maximum, by environment and week?
-- :phase open_environment     the phase
SELECT runs.environment, CAST(date_trunc('week', phases.started_at) AS DATE) AS week, count(*) AS stays,
       round(quantile_cont(phases.seconds, 0.5), 3) AS p50, round(quantile_cont(phases.seconds, 0.95), 3) AS p95,
       round(max(phases.seconds), 3) AS longest
FROM phases JOIN runs USING (run_key)
WHERE phases.phase = $phase AND phases.ended_by NOT IN ('died', 'nothing', 'running', 'run_finished')
  AND phases.seconds IS NOT NULL
GROUP BY ALL
ORDER BY ALL
