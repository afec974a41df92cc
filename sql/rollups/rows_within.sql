-- Rows of a table within raw sequences: from the first (exclusive) to the last (inclusive).
SELECT count()
FROM {database:Identifier}.{table:Identifier}
WHERE _tf_sequence > {after:UInt64} AND _tf_sequence <= {to:UInt64}
