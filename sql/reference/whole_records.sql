-- Rows behind a step that may meet several of a record: a record of which it rejects a row is rejected whole, and one of which it leaves no row
-- ends there; of both one row is left. A row that ends beside others is left out.
SELECT * EXCLUDE (refused_by, has_rows, place) REPLACE (coalesce(refused_by, stage) AS stage, place = 1 AS is_first)
FROM (
    SELECT *, row_number() OVER (PARTITION BY position ORDER BY stage IS NOT NULL, emit) AS place
    FROM (
        SELECT *, max(CASE WHEN NOT starts_with(stage, 'dropped.') THEN stage END) OVER (PARTITION BY position) AS refused_by,
               bool_or(stage IS NULL) OVER (PARTITION BY position) AS has_rows
        FROM ($rows)
    )
)
WHERE CASE WHEN refused_by IS NULL AND has_rows THEN stage IS NULL ELSE place = 1 END
