-- Fields of the row of a table that has the key of a record: a plain join with the snapshot that the record's plan names, on the columns of
-- the key themselves. A record without such a row has no values, is rejected, or ends here.
SELECT record.* REPLACE (coalesce(record.stage, CASE WHEN found._tf_hi IS NULL THEN $missing END) AS stage)$kinds_and_texts
FROM (
    SELECT given.record, CASE WHEN $is_inside THEN found END AS found
    FROM (SELECT record$inputs FROM ($rows) AS record) AS given
    $join (SELECT *$begin FROM $table) AS found ON $is_equal
)
