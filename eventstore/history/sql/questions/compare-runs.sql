-- What changed from one run to another: newly failing, newly passing, missing, new, changed score?
-- :a                  run_key of the first
-- :b                  run_key of the second
-- :metric correct     the score: its mean over a task's attempts
WITH score AS (
    SELECT run_key, task_id, avg(value) AS score
    FROM metrics
    WHERE scope = 'attempt' AND metric = $metric AND run_key IN ($a, $b) AND NOT isnan(value)
    GROUP BY ALL
), task AS (
    SELECT DISTINCT run_key, task_id FROM results WHERE run_key IN ($a, $b)
), one AS (SELECT task_id, score FROM task LEFT JOIN score USING (run_key, task_id) WHERE run_key = $a),
other AS (SELECT task_id, score FROM task LEFT JOIN score USING (run_key, task_id) WHERE run_key = $b)
SELECT task_id,
       CASE WHEN other.task_id IS NULL THEN 'missing' WHEN one.task_id IS NULL THEN 'new'
            WHEN one.score > 0 AND coalesce(other.score, 0) <= 0 THEN 'newly failing'
            WHEN other.score > 0 AND coalesce(one.score, 0) <= 0 THEN 'newly passing'
            WHEN one.score IS DISTINCT FROM other.score THEN 'changed' ELSE 'same' END AS change,
       one.score AS score_a, other.score AS score_b
FROM one FULL JOIN other USING (task_id)
ORDER BY change = 'same', change, task_id
