-- Records to rows of `parsed`. A record is read as a JSON object without a key twice; of each field come `json_type` and text, first under its
-- literal name, then under its dotted path. The first rule that applies rejects: fields, key, time, columns.
INSERT INTO parsed
SELECT position, "partition", "offset", arrival_us, is_past, is_wide, bytes,
       CASE WHEN NOT ($is_read) THEN 'parse' WHEN NOT ($is_keyed) THEN 'dedup' WHEN NOT ($is_mapped) THEN 'transform' END AS stage,
       $key AS key, $at AS at_us$values
FROM (
    SELECT position, "partition", "offset", arrival_us, is_past, is_wide, bytes, is_object, $kinds_and_texts
    FROM (
        SELECT *, json_type(document, [$paths]) AS kinds, json_extract_string(document, [$paths]) AS texts,
               coalesce(json_type(document) = 'OBJECT' AND $keys_are_distinct, false) AS is_object
        FROM (
            SELECT *, CASE WHEN json_valid(text) THEN text::JSON END AS document
            FROM (
                SELECT *, octet_length(value) > $wide_bytes AS is_wide, $bytes AS bytes, CASE WHEN NOT is_oversize THEN try(decode(value)) END AS text
                FROM frames
            )
        )
    )
)
