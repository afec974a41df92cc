-- The figures of one group in one window, and when they were computed. Names with a dollar sign stand for checked identifiers.
SELECT refreshed_at, as_of, $figures
FROM $database.$now
WHERE window = {window:String}$group
