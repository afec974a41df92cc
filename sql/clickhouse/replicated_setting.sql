-- The server's default of a setting of replicated tables.
SELECT value
FROM system.replicated_merge_tree_settings
WHERE name = {name:String}
