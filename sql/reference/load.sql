-- What the steps' statements, one within the other, make of raw records. A record with a key has come to dedup: what a later step drops is
-- dropped only if it is no copy. A record that no sink takes has ended before.
INSERT INTO parsed
SELECT position, emit, is_first, source, topic, "partition", "offset", arrival_us, is_past, is_wide, bytes, CASE WHEN NOT is_later THEN stage END, key, at_us, is_here,
       CASE WHEN is_later THEN stage END$labels
FROM (SELECT *, coalesce(key IS NOT NULL AND starts_with(stage, 'dropped.') AND stage <> 'dropped.unrouted', false) AS is_later FROM ($rows))
