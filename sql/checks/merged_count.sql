-- Sum of a column of `count` states.
SELECT countMerge({column:Identifier})
FROM {database:Identifier}.{table:Identifier}
