-- Rows of a table.
SELECT count()
FROM {database:Identifier}.{table:Identifier}
