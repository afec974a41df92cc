-- The first positions that have more than one row.
SELECT _tf_partition, _tf_offset, count() AS rows
FROM {database:Identifier}.{table:Identifier}
WHERE _tf_topic = {topic:String}
GROUP BY _tf_partition, _tf_offset, _tf_emit
HAVING rows > 1
ORDER BY _tf_partition, _tf_offset
LIMIT {examples:UInt32}
SETTINGS max_bytes_before_external_group_by = {spill_bytes:UInt64}
