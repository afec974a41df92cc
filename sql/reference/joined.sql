-- What becomes of each left record, from all records at once: the nearest right record of its key before it, if that one's window is open;
-- else the nearest one behind it, if its own window is open then; else it is unmatched once a frame has arrived at the end of its window.
-- Times are microseconds, positions packed; `raw_arrivals` holds every raw frame, those without records too.
WITH
arrivals AS (SELECT arrival_us, min(sequence) AS sequence FROM raw_arrivals GROUP BY arrival_us),
earlier AS (
    SELECT lefts.*, rights.position AS earlier_position, rights.arrival_us + $right_window_us > lefts.arrival_us AS is_there
    FROM lefts ASOF LEFT JOIN rights ON rights.key = lefts.key AND lefts.position > rights.position
),
later AS (
    SELECT earlier.*, rights.position AS later_position, rights.arrival_us < earlier.arrival_us + $left_window_us AS is_released
    FROM earlier ASOF LEFT JOIN rights ON rights.key = earlier.key AND earlier.position < rights.position
)
SELECT
    later.position,
    CASE WHEN is_there THEN earlier_position WHEN is_released THEN later_position END AS right_position,
    CASE
        WHEN is_there THEN later.position
        WHEN is_released THEN later_position
        -- Behind all records of the frame before the one with which the window had ended.
        ELSE (arrivals.sequence << 20) - 1
    END AS cause
FROM later ASOF LEFT JOIN arrivals ON later.arrival_us + $left_window_us <= arrivals.arrival_us
ORDER BY later.position
