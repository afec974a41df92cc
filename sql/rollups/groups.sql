-- The groups of the newest refresh, each as text. Names with a dollar sign stand for checked identifiers.
SELECT DISTINCT $groups
FROM $database.$now
ORDER BY ALL
LIMIT {most:UInt32}
