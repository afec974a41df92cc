-- The records of both sides behind the join, those whose place in it was decided from raw sequence $low to $high: a left record with the fields of
-- the right one that it has met. What has not met one, and right records, end here. What decides is the frame of the cause, or the one with which
-- the window had ended.
SELECT sides.* EXCLUDE (is_right, is_wide, stage, key, copy_key, time_us$other_fields),
       sides.is_wide OR coalesce(met.is_wide, false) AS is_wide,
       CASE WHEN sides.stage IS NOT NULL THEN sides.stage WHEN sides.is_right THEN 'dropped.kept' WHEN cause IS NULL THEN 'dropped.waiting'
            WHEN right_position IS NULL THEN $unmatched END AS stage,
       NULL::UHUGEINT AS key$columns
FROM sides LEFT JOIN joined USING (position) LEFT JOIN (FROM sides WHERE is_right) AS met ON met.position = joined.right_position
WHERE sides.position BETWEEN $first AND $last AND coalesce($decided_in, sides.position >> 20) BETWEEN $low AND $high
