-- What was in flight when runs died: task, attempt, phase, and for how long?
-- :run     only this run_key
SELECT phases.run_key, phases.task_id, phases.attempt, phases.phase, round(phases.seconds, 3) AS seconds, phases.started_at
FROM phases
WHERE phases.ended_by IN ('died', 'nothing') AND ($run IS NULL OR phases.run_key = $run)
ORDER BY phases.run_key, phases.started_at, phases.seq
