-- Positions of the rows that a table holds within bounds, inclusive; where it has arrivals to tell them by, within those as well.
SELECT _tf_sequence AS sequence, _tf_ordinal AS ordinal$emit_and_arrival
FROM {database:Identifier}.{table:Identifier}
WHERE _tf_sequence BETWEEN {first:UInt64} AND {last:UInt64}$within
