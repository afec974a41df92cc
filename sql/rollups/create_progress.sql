-- How far each target of a rollup is filled with rows from before its view: rows up to `cut` come from a fill, which has reached
-- `filled_to` and works up to `planned_to`. A target that was made anew has a higher `attempt`. Names with a dollar sign stand for checked
-- identifiers.
CREATE TABLE IF NOT EXISTS $database.$progress (
    stream_id String,
    target String,
    attempt UInt32,
    cut UInt64,
    filled_to UInt64,
    planned_to UInt64,
    noted_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY (stream_id, target, attempt, cut)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
