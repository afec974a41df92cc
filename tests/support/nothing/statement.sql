-- Every record as it comes, whatever $field holds.
SELECT *, $field_text AS looked_at
FROM ($rows)
