-- What failed, grouped by issue code and phase, and in how many tasks and runs?
SELECT severity, phase, code, count(*) AS issues, count(DISTINCT run_key) AS runs,
       count(DISTINCT (run_key, task_id)) AS tasks, min(left(message, 100)) AS example
FROM issues
GROUP BY ALL
ORDER BY issues DESC, severity, phase, code
