-- A table: its engine, its whole definition with settings, its partition key, its columns as `columns` tells them, and the materialized
-- views that an insert feeds.
SELECT
    engine,
    engine_full,
    partition_key,
    (
        SELECT arrayMap(one -> (one.2, one.3, one.4), arraySort(groupArray((position, name, type, default_kind))))
        FROM system.columns
        WHERE database = {database:String} AND table = {name:String}
    ),
    arrayZip(dependencies_database, dependencies_table)
FROM system.tables
WHERE database = {database:String} AND name = {name:String}
