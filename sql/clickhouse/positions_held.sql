-- Positions of the rows of some raw frames; of all inserts that were acknowledged, on whichever replica.
SELECT _tf_sequence, _tf_ordinal
FROM {database:Identifier}.{table:Identifier}
WHERE _tf_sequence BETWEEN {first:UInt64} AND {last:UInt64}
SETTINGS select_sequential_consistency = 1
