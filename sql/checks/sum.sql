-- Sum of a column of counts.
SELECT ifNull(sum({column:Identifier}), 0)
FROM {database:Identifier}.{table:Identifier}
