-- How much does each run take, by kind of file?
WITH result AS (SELECT run_key, sum(result_bytes) AS bytes FROM results GROUP BY ALL),
kept AS (
    SELECT run_key, sum(bytes) FILTER (kind = 'artifacts') AS artifacts, sum(bytes) FILTER (kind = 'retries') AS retries
    FROM artifacts GROUP BY ALL
)
SELECT runs.run_key, runs.bytes AS stream_bytes, coalesce(result.bytes, 0) AS result_bytes,
       coalesce(kept.artifacts, 0) AS artifact_bytes, coalesce(kept.retries, 0) AS retry_bytes
FROM runs LEFT JOIN result USING (run_key) LEFT JOIN kept USING (run_key)
ORDER BY stream_bytes + result_bytes + artifact_bytes + retry_bytes DESC, runs.run_key
