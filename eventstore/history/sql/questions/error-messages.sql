-- Which issues, phase errors and log lines speak of something?
-- :like %error%       what they must be like (% is anything)
-- :limit 100          how many to show
SELECT * FROM (
    SELECT run_key, 'issue' AS source, task_id, attempt, phase, NULL::TIMESTAMP AS moment, left(message, 200) AS message
    FROM issues
    UNION ALL BY NAME
    SELECT run_key, 'phase' AS source, task_id, attempt, phase, started_at AS moment, left(error, 200) AS message FROM phases
    WHERE error IS NOT NULL
    UNION ALL BY NAME
    SELECT run_key, 'log' AS source, task_id, NULL::BIGINT AS attempt, NULL AS phase, logged_at AS moment,
           left(message, 200) AS message
    FROM logs WHERE level IN ('WARNING', 'ERROR', 'CRITICAL')
    UNION ALL BY NAME
    SELECT run_key, 'run' AS source, NULL AS task_id, NULL::BIGINT AS attempt, NULL AS phase, finished_at AS moment,
           left(error, 200) AS message
    FROM runs WHERE error IS NOT NULL
)
WHERE message ILIKE $like
ORDER BY run_key, moment, source, task_id, attempt
LIMIT CAST($limit AS BIGINT)
