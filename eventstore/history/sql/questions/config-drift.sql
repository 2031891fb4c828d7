-- Which parameters of runs differ from those of a reference run of the same benchmark?
-- :reference     run_key of the reference
WITH reference AS (SELECT name, value FROM params WHERE run_key = $reference),
compared AS (
    SELECT runs.run_key FROM runs
    WHERE runs.benchmark = (SELECT benchmark FROM runs WHERE run_key = $reference) AND runs.run_key <> $reference
), own AS (SELECT run_key, name, value FROM params JOIN compared USING (run_key)),
wanted AS (SELECT compared.run_key, reference.name, reference.value FROM compared, reference)
SELECT run_key, name, wanted.value AS reference, own.value AS here
FROM wanted FULL JOIN own USING (run_key, name)
WHERE wanted.value IS DISTINCT FROM own.value AND NOT starts_with(name, 'output.') AND NOT starts_with(name, 'metadata.')
ORDER BY run_key, name
