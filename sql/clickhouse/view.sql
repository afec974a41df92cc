-- Definition of a materialized view. Its uuid names the inner table of a view without TO.
SELECT create_table_query, toString(uuid)
FROM system.tables
WHERE database = {database:String} AND name = {name:String}
