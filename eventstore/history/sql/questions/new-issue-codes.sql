-- Which issue codes appeared for the first time since a date?
-- :since 1970-01-01     the date (UTC)
SELECT issues.code, min(runs.started_at) AS first_seen, count(*) AS issues, count(DISTINCT issues.run_key) AS runs,
       min(issues.severity) AS severity, arg_min(left(issues.message, 100), runs.started_at) AS example
FROM issues JOIN runs USING (run_key)
GROUP BY issues.code
HAVING first_seen >= CAST($since AS TIMESTAMP)
ORDER BY first_seen, issues.code
