-- The right records that have come to the join, those around the range that may be joined with a left one of it too.
CREATE VIEW rights AS
SELECT position, key, arrival_us, time_us FROM sides WHERE stage IS NULL AND is_right
