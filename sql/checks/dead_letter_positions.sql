-- Rows of a table of dead letters, how many places of their stream they have, and how many places have more than one row.
SELECT sum(rows), count(), countIf(rows > 1)
FROM (
    SELECT count() AS rows
    FROM {database:Identifier}.{table:Identifier}
    GROUP BY _tf_sequence, _tf_ordinal, _tf_emit
)
SETTINGS max_bytes_before_external_group_by = {spill_bytes:UInt64}
