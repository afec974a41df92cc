-- A record that has come to the join is rejected by it if its own time is older than the watermark behind the frame before its own.
UPDATE sides SET stage = 'join'
WHERE stage IS NULL AND position IN (
    SELECT position
    FROM sides JOIN (SELECT sequence, lag(watermark_us, 1, $before_us) OVER (ORDER BY sequence) AS before_us FROM raw_watermarks) AS behind
        ON behind.sequence = position >> 20
    WHERE time_us < before_us
)
