-- A target of a rollup, which merges rows of one group and bucket. It remembers insert tokens as the table itself does, and has what it
-- acknowledges on the disk. Names with a dollar sign stand for checked identifiers, types and numbers.
CREATE TABLE IF NOT EXISTS $database.$target ($columns)
ENGINE = AggregatingMergeTree
ORDER BY ($order_by)$ttl
SETTINGS non_replicated_deduplication_window = $window, fsync_after_insert = 1, fsync_part_directory = 1$merges
