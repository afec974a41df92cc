-- Records that were not accepted, as `accepted_before` says, while the last record of their key before them that was lies less than a window away.
-- Such a record is a copy. One behind the watermark is rejected as late before, so the watermark has no part in it.
WITH keyed AS MATERIALIZED (
    SELECT parsed.position, key, at_us, then_dropped, accepted_before.position IS NOT NULL AS is_accepted
    FROM parsed LEFT JOIN accepted_before USING (position)
    WHERE stage IS NULL AND NOT is_past AND is_first
)
SELECT position
FROM (
    SELECT position, at_us, is_accepted, then_dropped,
           last_value(CASE WHEN is_accepted THEN at_us END IGNORE NULLS)
               OVER (PARTITION BY key ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS accepted_us
    FROM keyed SEMI JOIN (SELECT key FROM keyed WHERE NOT is_accepted) AS dropped USING (key)
)
WHERE NOT is_accepted AND abs(at_us - accepted_us) < $window_us AND position BETWEEN $first AND $last AND $absent
