-- What was each task of a run doing at a moment: after a number of events, or at a time?
-- :run          run_key
-- :events       after so many records
-- :time         at this time (UTC)
SELECT task_id, arg_max(event, seq) AS last_event, arg_max(phase, seq) AS phase, arg_max(attempt, seq) AS attempt,
       arg_max(status, seq) FILTER (event = 'task_finished') AS finished_as, max("timestamp") AS last_event_at
FROM events
WHERE run_key = $run AND task_id IS NOT NULL
  AND ($events IS NULL OR seq < CAST($events AS BIGINT)) AND ($time IS NULL OR "timestamp" <= CAST($time AS TIMESTAMP))
GROUP BY task_id
ORDER BY task_id
