-- Every record as it comes, whatever $field says.
SELECT *, $field AS looked_at
FROM ($rows)
