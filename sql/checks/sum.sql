-- Sum of a column of counts.
SELECT sum({column:Identifier})
FROM {database:Identifier}.{table:Identifier}
