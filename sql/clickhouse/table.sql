-- Engine of a table, and its whole definition with settings.
SELECT engine, engine_full
FROM system.tables
WHERE database = {database:String} AND name = {name:String}
