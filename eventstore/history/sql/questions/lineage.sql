-- Which run did each reused result come from, through how many runs, and is any source damaged?
WITH RECURSIVE source AS (
    SELECT run_key, run_key AS source_key, reused_from_run_id, reused_from_path, 0 AS steps, damaged > 0 AS damaged
    FROM runs WHERE reused_from_run_id IS NOT NULL OR reused_from_path IS NOT NULL
    UNION ALL
    SELECT source.run_key, runs.run_key, runs.reused_from_run_id, runs.reused_from_path, steps + 1, runs.damaged > 0
    FROM source JOIN runs ON (ends_with(source.reused_from_path, runs.run_key)
        OR (source.reused_from_path IS NULL AND runs.run_id = source.reused_from_run_id))
    WHERE steps < 50 AND runs.run_key <> source.run_key
)
SELECT run_key, steps, source_key, damaged FROM source WHERE steps > 0 ORDER BY ALL
