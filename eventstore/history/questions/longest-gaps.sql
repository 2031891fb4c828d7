-- What was the longest time without any event in each run, and what came before it?
SELECT run_key, round(gap, 3) AS seconds, seq, event, task_id, phase
FROM (
    SELECT run_key, seq, event, task_id, phase,
           epoch(lead("timestamp") OVER (PARTITION BY run_key ORDER BY seq)) - epoch("timestamp") AS gap
    FROM events
)
WHERE gap IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY run_key ORDER BY gap DESC, seq) = 1
ORDER BY seconds DESC, run_key
