-- The last record of each key before the replayed ones that was accepted, as `accepted_before` says.
CREATE OR REPLACE TABLE seeds AS
SELECT key, arg_max(at_us, position) AS at_us, max(position) AS position
FROM $records SEMI JOIN accepted_before USING (position)
WHERE stage IS NULL AND is_first AND NOT is_past AND position < $first_replayed
GROUP BY key
