-- What was the longest time without any event in each run, and what came before it?
SELECT runs.run_key, round(runs.longest_gap_seconds, 3) AS seconds, events.seq, events.event, events.task_id, events.phase
FROM runs JOIN events ON events.run_key = runs.run_key AND events.seq = runs.longest_gap_seq
ORDER BY runs.longest_gap_seconds DESC, runs.run_key
