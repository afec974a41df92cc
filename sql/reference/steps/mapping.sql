-- Fields to the values that the columns must hold: a record of which one has no place in its column is rejected.
SELECT * REPLACE (coalesce(stage, CASE WHEN NOT ($is_mapped) THEN 'transform' END) AS stage)$values
FROM ($rows)
