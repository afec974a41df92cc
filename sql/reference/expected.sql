-- The rows that the table must have: records of the range that no stage rejects or drops, that are no copies, that the sink takes, and that ClickHouse has not refused.
CREATE VIEW expected AS
SELECT position, emit, position >> $bucket_bits AS bucket$columns
FROM parsed
    ANTI JOIN dropped USING (position)
    $closed
    ANTI JOIN (FROM dead_letters WHERE stage = 'sink') USING (position, emit)
WHERE position BETWEEN $first AND $last AND stage IS NULL AND then_dropped IS NULL AND is_here
