-- Fields from the fields before; a record on which an expression fails, or gives no finite number, is rejected. Each record is tried by itself.
SELECT record.* REPLACE (coalesce(record.stage, CASE WHEN $is_failed THEN 'compute' END) AS stage)$kinds_and_texts
FROM (SELECT record$tried FROM (SELECT record$inputs FROM ($rows) AS record))
