-- Left records of which something that was not read decides: a right one before them that is purged (`purged`); the sink, which has not confirmed
-- what made their row appear (`pending`); or frames that process has not done (`waits`). What may be a copy of a purged record counts as purged.
INSERT INTO open_lefts
SELECT position, CASE WHEN is_undecided OR first_right IS NULL AND time_us < $purged_us + $right_window_us THEN 'purged' WHEN cause IS NULL THEN 'waits' ELSE 'pending' END AS why
FROM (
    SELECT *, position IN (FROM undecided_copies) OR key IN (SELECT key FROM rights SEMI JOIN undecided_copies USING (position)) AS is_undecided
    FROM lefts
) JOIN joined USING (position)
    LEFT JOIN (
        SELECT lefts.position, rights.position AS first_right
        FROM lefts ASOF JOIN rights ON rights.key = lefts.key AND $is_before WHERE $is_enough
    ) USING (position)
WHERE is_undecided OR first_right IS NULL AND time_us < $purged_us + $right_window_us OR cause IS NULL OR $decided_in > $confirmed_to
