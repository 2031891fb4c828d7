-- Which lines are damaged, where, and what is lost?
SELECT run_key, file, line, "offset", length, code, severity, message
FROM damage
ORDER BY run_key, file, "offset", code
