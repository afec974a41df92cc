-- What becomes of each left record by the records' own times, from all records that were not late at once: the right record of its key
-- with the newest time at its own or before, if the right window is open; else the one with the first time behind, if the left window is.
-- A row appears behind the first frame whose watermark leaves no room for a better right record. Times are microseconds, positions packed;
-- `raw_watermarks` holds every raw frame with the watermark behind it, NULL for none.
WITH
moments AS (SELECT key, time_us, min(position) AS first_position, max(position) AS last_position FROM rights GROUP BY ALL),
earlier AS (
    SELECT lefts.*, moments.last_position AS earlier_position, lefts.time_us - moments.time_us < $right_window_us AS is_there
    FROM lefts ASOF LEFT JOIN moments ON moments.key = lefts.key AND lefts.time_us >= moments.time_us
),
later AS (
    SELECT
        earlier.*,
        moments.first_position AS later_position,
        moments.time_us AS later_us,
        moments.time_us - earlier.time_us < $left_window_us AS is_released
    FROM earlier ASOF LEFT JOIN moments ON moments.key = earlier.key AND earlier.time_us < moments.time_us
),
matched AS (
    SELECT
        position,
        CASE WHEN is_there THEN earlier_position WHEN is_released THEN later_position END AS right_position,
        CASE WHEN is_there THEN time_us + 1 WHEN is_released THEN later_us + 1 ELSE time_us + $left_window_us END AS final_us
    FROM later
),
marks AS (SELECT watermark_us, min(sequence) AS sequence FROM raw_watermarks WHERE watermark_us IS NOT NULL GROUP BY watermark_us)
SELECT matched.position, right_position, ((marks.sequence + 1) << 20) - 1 AS cause
FROM matched ASOF LEFT JOIN marks ON matched.final_us <= marks.watermark_us
ORDER BY matched.position
