-- How often was an evaluation recovered from a checkpoint instead of running the agent again, and what did that save?
WITH typical AS (
    SELECT task_id, benchmark, median(phases.seconds) AS seconds
    FROM phases JOIN runs USING (run_key)
    WHERE phase IN ('run_harness', 'run_task') AND phases.ended_at IS NOT NULL
    GROUP BY ALL
)
SELECT runs.run_key, count(*) AS recovered, round(sum(typical.seconds), 3) AS saved_seconds
FROM phases JOIN runs USING (run_key)
LEFT JOIN typical ON typical.task_id = phases.task_id AND typical.benchmark = runs.benchmark
WHERE phases.phase = 'recover_evaluation'
GROUP BY ALL
ORDER BY recovered DESC, runs.run_key
