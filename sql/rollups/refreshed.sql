-- When the windows were computed last, and where they end; no row before the first refresh. Names with a dollar sign stand for checked
-- identifiers.
SELECT refreshed_at, as_of
FROM $database.$now
LIMIT 1
