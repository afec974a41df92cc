-- The left records of the range that have come to the join.
CREATE VIEW lefts AS
SELECT position, key, arrival_us, time_us FROM sides WHERE stage IS NULL AND NOT is_right AND position BETWEEN $first AND $last
