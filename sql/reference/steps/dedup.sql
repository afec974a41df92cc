-- Keys and times: a record without a key, or without a time of its own where windows go by one, is rejected. Copies are found once all is read.
-- Only a record that has come here has a key.
SELECT * REPLACE (coalesce(stage, CASE WHEN NOT ($is_keyed) THEN 'dedup' END) AS stage, CASE WHEN stage IS NULL THEN $key END AS key, $at AS at_us)
FROM ($rows)
