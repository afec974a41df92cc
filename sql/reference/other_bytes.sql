-- Records whose bytes on raw are not those that Kafka holds at the same offset. What entered again did not come from there.
SELECT position, 'the bytes that Kafka holds' AS wanted, 'other bytes' AS found
FROM parsed JOIN kafka USING (source, "partition", "offset")
WHERE is_first AND position BETWEEN $first AND $last AND parsed.bytes <> kafka.bytes AND position >> 20 NOT IN (SELECT sequence FROM redriven)
