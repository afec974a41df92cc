-- The records of which the reference says whether they are copies.
CREATE OR REPLACE VIEW replayed AS
SELECT position, key, at_us FROM $records WHERE stage IS NULL AND is_first AND NOT is_past AND position >= $first_replayed
