-- A record for which the condition is not true ends here; one on which it fails is rejected. Each record is tried by itself: no guards, no
-- rewriting.
SELECT record.* REPLACE (coalesce(record.stage, CASE WHEN tried IS NULL$or_is_nil THEN 'filter' WHEN tried.v IS NOT true THEN 'dropped.filter' END) AS stage)
FROM (SELECT record, $tried AS tried FROM (SELECT record$inputs FROM ($rows) AS record))
