-- Raw positions of a table's rows between two sequences, inclusive, in any order. Names with a dollar sign stand for checked identifiers.
SELECT _tf_sequence, _tf_ordinal
FROM $database.$table
WHERE _tf_sequence BETWEEN {first:UInt64} AND {last:UInt64}
SETTINGS select_sequential_consistency = 1
