-- The first places of the dead-letter stream that have more than one row in a table of dead letters.
SELECT _tf_sequence, _tf_ordinal, count() AS rows
FROM {database:Identifier}.{table:Identifier}
GROUP BY _tf_sequence, _tf_ordinal, _tf_emit
HAVING rows > 1
ORDER BY _tf_sequence, _tf_ordinal
LIMIT {examples:UInt32}
SETTINGS max_bytes_before_external_group_by = {spill_bytes:UInt64}
