-- The server's default of a MergeTree setting.
SELECT value
FROM system.merge_tree_settings
WHERE name = {name:String}
