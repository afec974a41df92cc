-- Records of one side of a join that may be copies of purged ones: those before the first one of their key that comes a window, or more, behind the
-- record before it, or behind the purge.
INSERT INTO undecided_copies
SELECT position
FROM (
    SELECT position, bool_or(at_us - before_us >= $window_us) OVER (PARTITION BY copy_key ORDER BY position) AS is_sure
    FROM (
        SELECT position, copy_key, at_us, lag(at_us, 1, $purged_us) OVER (PARTITION BY copy_key ORDER BY position) AS before_us
        FROM sides WHERE stage IS NULL AND NOT is_past AND is_right = $is_right
    )
)
WHERE NOT is_sure
