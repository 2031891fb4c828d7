-- Which tasks got their best score only in a later attempt (is k worth it)?
-- :metric correct     the score
SELECT run_key, task_id, arg_max(attempt, value) AS best_attempt, max(value) AS best,
       arg_min(value, attempt) AS first_score
FROM metrics
WHERE scope = 'attempt' AND metric = $metric AND NOT isnan(value)
GROUP BY ALL
HAVING max(value) > arg_min(value, attempt)
ORDER BY run_key, task_id
