-- Names of the server's aggregate functions, in lower case.
SELECT DISTINCT lower(name)
FROM system.functions
WHERE is_aggregate
