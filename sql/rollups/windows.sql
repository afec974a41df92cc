-- The figures of the windows that end at one instant, by group. Names with a dollar sign stand for checked text.
WITH fromUnixTimestamp64Second(ifNull($until, 0), 'UTC') AS _until
SELECT now64(6, 'UTC') AS refreshed_at, _until AS as_of, $columns
FROM ($whole) AS _whole$tops
