-- Rows that the table must have and does not.
SELECT position, CASE WHEN emit = 0 THEN 'a row' ELSE 'row ' || emit END AS wanted, 'none' AS found FROM wanted ANTI JOIN found USING (position, emit)
