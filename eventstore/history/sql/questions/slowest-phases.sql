-- Which stays in a phase took longest?
-- :limit 20        how many to show
-- :environment     only runs in this environment
-- :phase           only this phase
SELECT phases.run_key, phases.task_id, phases.attempt, phases.phase, round(phases.seconds, 3) AS seconds, phases.ended_by
FROM phases JOIN runs USING (run_key)
WHERE phases.seconds IS NOT NULL AND ($environment IS NULL OR runs.environment = $environment)
  AND ($phase IS NULL OR phases.phase = $phase)
ORDER BY phases.seconds DESC, phases.run_key, phases.seq
LIMIT CAST($limit AS BIGINT)
