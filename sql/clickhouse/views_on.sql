-- Materialized views that an insert into a table feeds.
SELECT view.1, view.2
FROM system.tables
ARRAY JOIN arrayZip(dependencies_database, dependencies_table) AS view
WHERE database = {database:String} AND name = {name:String}
