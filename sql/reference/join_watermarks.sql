-- The watermark of a join by the records' own times behind each raw frame, NULL for none: where the last of the partitions has come that are not
-- idle, or, if all are, the furthest, less the lateness; it never steps back. None before both sources have a partition. A partition is idle from
-- a mark on until its next record; a mark that knows less of it than raw does means nothing. Frames of redriven records have no partition here.
CREATE TABLE raw_watermarks AS
WITH
times AS (SELECT position >> 20 AS sequence, max(time_us) AS newest_us FROM sides WHERE stage IS NULL GROUP BY ALL),
frames AS (
    SELECT raw_arrivals.sequence, "partition", next_offset, newest_us
    FROM raw_arrivals LEFT JOIN raw_frames USING (sequence) LEFT JOIN times ON times.sequence = raw_arrivals.sequence AND "partition" IS NOT NULL
),
partitions AS (
    SELECT "partition" FROM raw_frames WHERE "partition" IS NOT NULL
    UNION SELECT "partition" FROM raw_marks
    UNION SELECT "partition" FROM partitions_before
),
own AS (
    SELECT frames.sequence, partitions."partition", before.newest_us AS newest_before, before.seen AS seen_before, marks.next_offset AS marked_offset,
           coalesce(frames."partition" = partitions."partition", false) AS is_own, frames.newest_us, frames.next_offset
    FROM frames CROSS JOIN partitions
    LEFT JOIN partitions_before AS before ON before."partition" = partitions."partition"
    LEFT JOIN raw_marks AS marks ON marks.sequence = frames.sequence AND marks."partition" = partitions."partition"
),
so_far AS (
    SELECT sequence, "partition", seen_before, marked_offset,
           greatest(newest_before, max(CASE WHEN is_own THEN newest_us END) OVER upto) AS newest_us,
           greatest(seen_before >> 1, max(CASE WHEN is_own THEN next_offset END) OVER upto, 0) AS read,
           max(CASE WHEN is_own AND newest_us IS NOT NULL THEN sequence END) OVER upto AS recorded_in,
           seen_before IS NOT NULL OR bool_or(is_own OR marked_offset IS NOT NULL) OVER upto AS is_known
    FROM own
    WINDOW upto AS (PARTITION BY "partition" ORDER BY sequence)
),
states AS (
    SELECT *, max(CASE WHEN marked_offset >= read THEN sequence END) OVER (PARTITION BY "partition" ORDER BY sequence) AS marked_in FROM so_far
),
known AS (
    SELECT sequence, "partition", newest_us,
           CASE WHEN marked_in IS NULL AND recorded_in IS NULL THEN coalesce(seen_before & 1, 0) = 1
                ELSE coalesce(marked_in, 0) > coalesce(recorded_in, 0) END AS is_idle
    FROM states WHERE is_known
),
reached AS (
    SELECT sequence,
           CASE WHEN count(DISTINCT "partition" // $partitions_of_a_source) < 2 THEN NULL
                WHEN bool_and(is_idle) THEN max(newest_us)
                WHEN count(*) FILTER (NOT is_idle AND newest_us IS NULL) = 0 THEN min(newest_us) FILTER (NOT is_idle) END - $lateness_us AS reached_us
    FROM known GROUP BY sequence
)
SELECT sequence, greatest($before_us, max(reached_us) OVER (ORDER BY sequence)) AS watermark_us FROM frames LEFT JOIN reached USING (sequence)
