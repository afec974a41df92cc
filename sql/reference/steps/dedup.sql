-- Keys and times: a record without a key, or without a time of its own where windows go by one, is rejected. Copies are found once all is read.
SELECT * REPLACE (coalesce(stage, CASE WHEN NOT ($is_keyed) THEN 'dedup' END) AS stage, $key AS key, $at AS at_us)
FROM ($rows)
