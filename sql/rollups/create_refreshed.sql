-- The windows of a rollup, a set of rows for each refresh; the newest counts. Names with a dollar sign stand for checked text.
CREATE TABLE IF NOT EXISTS $database.$refreshed ($columns)
ENGINE = MergeTree
ORDER BY ($order_by)
TTL toDateTime(refreshed_at) + INTERVAL $keep_seconds SECOND
