-- Positions of the rows that a table holds within bounds, inclusive, with their arrival in microseconds.
SELECT _tf_sequence AS sequence, _tf_ordinal AS ordinal, _tf_emit AS emit, toUnixTimestamp64Micro(_tf_arrival) AS arrival_us
FROM {database:Identifier}.{table:Identifier}
WHERE _tf_sequence BETWEEN {first:UInt64} AND {last:UInt64}
  AND _tf_arrival BETWEEN fromUnixTimestamp64Micro({since:Int64}, 'UTC') AND fromUnixTimestamp64Micro({until:Int64}, 'UTC')
