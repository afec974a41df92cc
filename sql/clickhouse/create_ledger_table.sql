-- The ledger's entries. Copied by insert token, the engine drops what a lost token would double, at a merge.
-- Names with a dollar sign stand for checked identifiers and numbers.
CREATE TABLE IF NOT EXISTS $database.$table (
    pipeline LowCardinality(String),
    stream_id LowCardinality(String),
    sequence UInt64,
    leg LowCardinality(String),
    kind LowCardinality(String),
    time DateTime64(6, 'UTC'),
    epoch UInt64,
    range_from String,
    range_to String,
    counts Map(LowCardinality(String), UInt64),
    body String
)
ENGINE = ReplacingMergeTree
ORDER BY (pipeline, stream_id, sequence)
SETTINGS non_replicated_deduplication_window = $window
