-- What the steps' statements, one within the other, make of raw records.
INSERT INTO parsed
SELECT position, source, topic, "partition", "offset", arrival_us, is_past, is_wide, bytes, stage, key, at_us, is_here$labels
FROM ($rows)
