-- Engine of a table, its whole definition with settings, and its partition key.
SELECT engine, engine_full, partition_key
FROM system.tables
WHERE database = {database:String} AND name = {name:String}
