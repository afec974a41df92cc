-- Rows of one topic, how many positions they have, how many positions have more than one row, and how many positions have a row of raw frames
-- up to a sequence. What memory does not hold is spilled.
SELECT sum(rows), count(), countIf(rows > 1), countIf(first <= {settled_to:UInt64})
FROM (
    SELECT count() AS rows, min(_tf_sequence) AS first
    FROM {database:Identifier}.{table:Identifier}
    WHERE _tf_topic = {topic:String}
    GROUP BY _tf_partition, _tf_offset, _tf_emit
)
SETTINGS max_bytes_before_external_group_by = {spill_bytes:UInt64}
