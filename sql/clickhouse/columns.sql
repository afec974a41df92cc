-- Columns of a table in their order. default_kind is empty, DEFAULT, MATERIALIZED, ALIAS or EPHEMERAL.
SELECT name, type, default_kind
FROM system.columns
WHERE database = {database:String} AND table = {name:String}
ORDER BY position
