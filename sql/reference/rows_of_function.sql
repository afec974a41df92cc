-- Rows that a function makes of a record, with the fields that it returns and their numbers from 0; a record on which it fails is rejected, one
-- that it leaves out ends here. Each record is called for by itself, but for those on which it has ended or hung, as their dead letters show.
-- Of a record that was redriven for one refused row that row is left; it is rejected if there is none.
SELECT record.* REPLACE (
           coalesce(record.stage, CASE WHEN is_lost THEN 'python' END, made.stage) AS stage, emit::UINTEGER AS emit, is_first AS is_first
       )$kinds_and_texts
FROM (
    SELECT record, is_lost, unnest(CASE WHEN is_lost THEN made[1:1] WHEN is_one THEN made[record.refused_row + 1:record.refused_row + 1] ELSE made END) AS made,
           unnest(CASE WHEN is_lost THEN [0] WHEN is_one THEN [record.refused_row] ELSE range(len(made)) END) AS emit,
           unnest(CASE WHEN is_lost OR is_one THEN [true] ELSE list_transform(range(len(made)), lambda n: n = 0) END) AS is_first
    FROM (
        SELECT *, is_one AND (coalesce(starts_with(made[1].stage, 'dropped.'), false) OR record.refused_row >= len(made)) AS is_lost
        FROM (
            SELECT record, made, is_called AND record.refused_row IS NOT NULL AND coalesce(starts_with(made[1].stage, 'dropped.'), true) AS is_one
            FROM (
                SELECT record, is_called, CASE WHEN is_called THEN $function($argument) ELSE [NULL] END AS made
                FROM (
                    SELECT record, record.stage IS NULL AND record.position NOT IN (SELECT position FROM dead_letters WHERE code IN ($codes)) AS is_called$inputs
                    FROM ($rows) AS record
                )
            )
        )
    )
)
