-- A target table that remembers insert tokens. Names with a dollar sign stand for checked identifiers, types and numbers.
CREATE TABLE IF NOT EXISTS $database.$table ($columns)
ENGINE = MergeTree
ORDER BY ($order_by)
SETTINGS non_replicated_deduplication_window = $window
