-- Rows of one topic, how many positions they have, and how many positions have more than one row. What memory does not hold is spilled.
SELECT sum(rows), count(), countIf(rows > 1)
FROM (
    SELECT count() AS rows
    FROM {database:Identifier}.{table:Identifier}
    WHERE _tf_topic = {topic:String}
    GROUP BY _tf_partition, _tf_offset, _tf_emit
)
SETTINGS max_bytes_before_external_group_by = {spill_bytes:UInt64}
