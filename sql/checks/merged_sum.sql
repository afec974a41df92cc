-- Sum of a column of `sum` states.
SELECT sumMerge({column:Identifier})
FROM {database:Identifier}.{table:Identifier}
