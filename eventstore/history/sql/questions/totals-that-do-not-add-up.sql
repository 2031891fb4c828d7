-- In which finished runs do the totals not add up, or does a task stand in two states?
WITH doubled AS (
    SELECT run_key, count(*) AS tasks
    FROM (SELECT run_key, task_id FROM results GROUP BY ALL HAVING count(DISTINCT state) > 1)
    GROUP BY ALL
)
SELECT run_key, status, total_tasks, finished_tasks, pending_tasks, running_tasks, completed_tasks, failed_tasks,
       skipped_tasks, coalesce(doubled.tasks, 0) AS tasks_in_two_states
FROM runs LEFT JOIN doubled USING (run_key)
WHERE NOT analysis_only AND events > 0 AND (
    (life = 'finished' AND total_tasks <> finished_tasks + pending_tasks + running_tasks)
    OR finished_tasks <> completed_tasks + failed_tasks + skipped_tasks
    OR doubled.tasks > 0)
ORDER BY run_key
