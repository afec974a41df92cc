-- Sum of a column of `sum` states.
SELECT ifNull(sumMerge({column:Identifier}), 0)
FROM {database:Identifier}.{table:Identifier}
