-- A target table that remembers insert tokens, and has what it acknowledges on the disk. Names with a dollar sign stand for checked
-- identifiers, types and numbers. What an insert writes is a compact part, a merge of a few a wide one.
CREATE TABLE IF NOT EXISTS $database.$table ($columns)
ENGINE = MergeTree
ORDER BY ($order_by)
SETTINGS non_replicated_deduplication_window = $window, fsync_after_insert = 1, fsync_part_directory = 1,
    min_bytes_for_wide_part = 134217728
