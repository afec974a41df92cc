-- A table as `tallyflow init` proposes it. Names with a dollar sign stand for checked identifiers, types and numbers.
CREATE TABLE IF NOT EXISTS $database.$table ($columns)
ENGINE = MergeTree
$partition_by
ORDER BY ($order_by)
SETTINGS non_replicated_deduplication_window = $window, fsync_after_insert = 1, fsync_part_directory = 1,
    min_bytes_for_wide_part = 134217728
