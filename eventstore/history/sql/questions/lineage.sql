-- Which run did each reused result come from, through how many runs, and is any source damaged?
WITH RECURSIVE reusing AS (
    SELECT
        run_key, reused_from_run_id AS source_id, replace(reused_from_path, '\', '/') AS source_path,
        regexp_extract(coalesce(nullif(source_path, ''), reused_from_run_id), '[^/]+$') AS source_name,
        regexp_replace(run_key, '[^/]*$', '') AS folder
    FROM runs WHERE reused_from_run_id IS NOT NULL OR reused_from_path IS NOT NULL
),
sources AS (
    -- The run at the recorded path; else one of this id and folder name beside the run; else one of this id whose whole
    -- key ends the recorded path. A source that is not in this history has NULL for its key.
    SELECT reusing.run_key, found.run_key AS source_key, found.damaged > 0 AS damaged
    FROM reusing LEFT JOIN runs AS found ON found.run_key <> reusing.run_key AND (
        found.path = source_path
        OR (coalesce(found.run_id = source_id, true) AND found.run_key = folder || source_name)
        OR (found.run_id = source_id AND contains(found.run_key, '/') AND ends_with(source_path, '/' || found.run_key))
    )
    QUALIFY row_number() OVER (
        PARTITION BY reusing.run_key
        ORDER BY found.path = source_path DESC NULLS LAST, found.run_key = folder || source_name DESC, found.run_key
    ) = 1
),
lineage AS (
    SELECT run_key, 1 AS steps, source_key, damaged FROM sources
    UNION ALL
    SELECT lineage.run_key, steps + 1, sources.source_key, sources.damaged
    FROM lineage JOIN sources ON sources.run_key = lineage.source_key
    WHERE steps < 50 AND sources.source_key IS DISTINCT FROM lineage.run_key
)
SELECT run_key, steps, source_key, damaged FROM lineage ORDER BY ALL
