-- Those of some settings of tables that the server knows.
SELECT name
FROM system.merge_tree_settings
WHERE name IN {names:Array(String)}
