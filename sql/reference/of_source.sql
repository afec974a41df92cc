-- The records of one source behind its own steps, with the fields that the records of all sources have.
SELECT position, emit, is_first, refused_row, source, topic, "partition", "offset", arrival_us, is_past, sink, is_wide, bytes, stage, key, at_us$columns
FROM ($rows)
