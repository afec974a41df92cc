-- One row if the server knows a setting of tables.
SELECT name
FROM system.merge_tree_settings
WHERE name = {setting:String}
