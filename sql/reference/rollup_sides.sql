-- The buckets of a target beside those of the table, each side a row or NULL. Names with a dollar sign stand for checked identifiers.
SELECT $keys, w, f
FROM wanted AS w FULL JOIN found AS f ON $on
