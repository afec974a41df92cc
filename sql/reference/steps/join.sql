-- The records of one side of a join behind the steps of their source, with the fields that a joined record takes of them: a record with a null in
-- its key, or without a time of its own where they meet by one, is rejected. What it meets, and whether it is a copy, is found once all records are read.
SELECT position, emit, is_first, source, topic, "partition", "offset", arrival_us, is_past, sink, is_wide, bytes, $is_right AS is_right,
       coalesce(stage, CASE WHEN NOT ($is_keyed) THEN 'join' END) AS stage, $key AS key, $copy_key AS copy_key, at_us, $time AS time_us$columns
FROM ($rows)
