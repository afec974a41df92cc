-- Dead letters against the records that the reference rejects: a dead letter that is missing, one that nothing explains, and one of another stage.
SELECT CASE WHEN dead_letters.position IS NULL THEN 'missing' WHEN wanted IS NULL THEN 'extra' ELSE 'different' END AS kind,
       coalesce(dead_letters.position, rejected.position) AS position, wanted, dead_letters.stage AS found
FROM (SELECT position, stage AS wanted FROM parsed WHERE position BETWEEN $first AND $last AND is_first AND NOT starts_with(stage, 'dropped.')) AS rejected
FULL JOIN (
    SELECT position, stage FROM dead_letters WHERE position BETWEEN $first AND $last AND NOT starts_with(stage, 'sink')
) AS dead_letters USING (position)
WHERE wanted IS DISTINCT FROM dead_letters.stage
  AND coalesce(dead_letters.position, rejected.position) NOT IN (SELECT position FROM open_lefts WHERE why <> 'pending')
