-- Dead letters against the records that the reference rejects: a letter that is missing, one that nothing explains, and one of another stage.
SELECT CASE WHEN letters.position IS NULL THEN 'missing' WHEN wanted IS NULL THEN 'extra' ELSE 'different' END AS kind,
       coalesce(letters.position, rejected.position) AS position, wanted, letters.stage AS found
FROM (SELECT position, stage AS wanted FROM parsed WHERE position BETWEEN $first AND $last AND stage IS NOT NULL) AS rejected
FULL JOIN (
    SELECT position, letters.stage, code
    FROM letters LEFT JOIN parsed USING (position)
    WHERE position BETWEEN $first AND $last AND letters.stage <> 'sink'
      AND NOT (code = 'row_too_large' AND coalesce(is_wide, false) AND parsed.stage IS NULL)
) AS letters USING (position)
WHERE wanted IS DISTINCT FROM letters.stage
