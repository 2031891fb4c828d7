-- Which attempts spent nearly all the time that their plan allows for the agent?
-- :share 0.9     at least this share of it
SELECT phases.run_key, phases.task_id, phases.attempt, phases.phase, round(phases.seconds, 3) AS seconds,
       plans.run_timeout_seconds, round(phases.seconds / plans.run_timeout_seconds, 3) AS share
FROM phases JOIN plans USING (run_key, task_id, attempt)
WHERE phases.phase IN ('run_harness', 'run_task') AND phases.seconds >= CAST($share AS DOUBLE) * plans.run_timeout_seconds
ORDER BY share DESC, phases.run_key, phases.seq
