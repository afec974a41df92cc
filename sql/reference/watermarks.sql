-- With the window on a field: the watermark of each raw frame, the newest time in all frames before it (`$newest_us` before the first), less the
-- allowed lateness. What was rejected before dedup has no part in it.
CREATE TABLE watermarks AS
SELECT sequence,
       greatest(
           $newest_us,
           coalesce(max(newest_us) OVER (ORDER BY sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), $newest_us)
       )::HUGEINT - $lateness_us AS watermark_us
FROM (SELECT position >> 20 AS sequence, max(at_us) AS newest_us FROM parsed WHERE stage IS NULL GROUP BY sequence)
