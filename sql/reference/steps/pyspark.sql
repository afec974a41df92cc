-- Fields that a function over DataFrames returns; a record on which it fails is rejected, one that it leaves out ends here. Each record is called for by itself,
-- but for those on which it has ended or hung, as their dead letters show.
SELECT record.* REPLACE (coalesce(record.stage, made.stage) AS stage)$kinds_and_texts
FROM (
    SELECT record, CASE WHEN is_called THEN $function($argument) END AS made
    FROM (
        SELECT record, record.stage IS NULL AND record.position NOT IN (SELECT position FROM dead_letters WHERE code IN ($codes)) AS is_called$inputs
        FROM ($rows) AS record
    )
)
