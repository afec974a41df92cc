-- With the window on a field: the combined watermark before each raw frame, without the lateness. Behind a frame it is the oldest of the newest
-- times of the partitions that had one of the last $idle_records records, but a window behind the newest of all; it never steps back.
-- What was rejected before dedup has no part in it, nor have records that entered again (frames without a partition).
CREATE TABLE watermarks AS
WITH
frames AS (
    SELECT raw_frames.sequence, raw_frames."partition", max(at_us) AS newest_us, count(at_us) AS records
    FROM raw_frames LEFT JOIN (SELECT position >> 20 AS sequence, at_us FROM parsed WHERE stage IS NULL AND is_first) USING (sequence)
    GROUP BY raw_frames.sequence, raw_frames."partition"
),
counted AS (
    SELECT *, $records + sum(CASE WHEN "partition" IS NULL THEN 0 ELSE records END) OVER (ORDER BY sequence) AS read FROM frames
),
partitions AS (
    SELECT "partition" FROM counted WHERE "partition" IS NOT NULL UNION SELECT "partition" FROM partitions_before
),
states AS (
    SELECT sequence, read, partitions."partition",
           greatest(before.newest_us, max(CASE WHEN counted."partition" = partitions."partition" THEN counted.newest_us END) OVER so_far) AS newest_us,
           coalesce(
               max(CASE WHEN counted."partition" = partitions."partition" AND records > 0 THEN read END) OVER so_far,
               before.seen,
               min(CASE WHEN counted."partition" = partitions."partition" THEN read END) OVER so_far
           ) AS seen
    FROM counted CROSS JOIN partitions LEFT JOIN partitions_before AS before ON before."partition" = partitions."partition"
    WINDOW so_far AS (PARTITION BY partitions."partition" ORDER BY sequence)
),
combined AS (
    SELECT sequence, CASE WHEN count(*) FILTER (is_read AND newest_us IS NULL) = 0
                          THEN least(min(newest_us) FILTER (is_read), max(newest_us) - $window_us) END AS oldest_us
    FROM (SELECT *, coalesce(seen >= read - $idle_records, false) AS is_read FROM states)
    GROUP BY sequence
)
SELECT sequence, "partition",
       greatest($combined_us, max(oldest_us) OVER (ORDER BY sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS combined_us
FROM counted LEFT JOIN combined USING (sequence)
