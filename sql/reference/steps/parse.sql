-- Records to fields. A record is read as a JSON object without a key twice; of each field come `json_type` and text, first under its literal
-- name, then under its dotted path; of a column beside the JSON they come from the record. `stage` is the one that rejects the record: the first that does.
-- $is_lost: it was redriven for one of its rows, and is one row now. $is_ended: a later stage has ended on it, as its dead letter shows: no step is to
-- compute it, which may take more memory than there is; the letter's stage takes the place of this one once all is read.
SELECT * EXCLUDE (is_object), CASE WHEN $is_ended THEN 'ended' WHEN $is_lost THEN 'python' WHEN NOT ($is_read) THEN 'parse' END AS stage, NULL::UHUGEINT AS key, arrival_us AS at_us
FROM (
    SELECT position, 0::UINTEGER AS emit, true AS is_first, refused_row, $source AS source, $topic AS topic, "partition", "offset", arrival_us, is_past, sink, is_wide, bytes, is_object, $kinds_and_texts
    FROM (
        SELECT *, json_type(document, [$paths]) AS kinds, json_extract_string(document, [$paths]) AS texts,
               coalesce(json_type(document) = 'OBJECT' AND $keys_are_distinct, false) AS is_object
        FROM (
            SELECT *, CASE WHEN json_valid(text) THEN text::JSON END AS document
            FROM (
                SELECT *, $size > $wide_bytes AS is_wide, $bytes AS bytes, CASE WHEN NOT is_oversize THEN try(decode(value)) END AS text
                FROM ($rows)
            )
        )
    )
)
