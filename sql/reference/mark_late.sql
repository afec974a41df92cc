-- A record is rejected by dedup if it is older than an earlier one of its partition, or than the combined watermark, by more than the lateness;
-- one that entered again if it is than the combined watermark. What dedup had accepted before it was a dead letter is not compared again.
UPDATE parsed SET stage = 'dedup'
WHERE position IN (
    SELECT position
    FROM (
        SELECT position, at_us, is_past, combined_us, CASE WHEN watermarks."partition" IS NOT NULL THEN greatest(
                   before.newest_us,
                   max(at_us) OVER (PARTITION BY watermarks."partition" ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
               ) END AS newest_us
        FROM parsed
        JOIN watermarks ON watermarks.sequence = parsed.position >> 20
        LEFT JOIN partitions_before AS before ON before."partition" = watermarks."partition"
        WHERE stage IS NULL AND is_first
    )
    WHERE NOT is_past AND at_us < greatest(combined_us, newest_us) - $lateness_us
)
