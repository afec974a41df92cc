-- Positions that the table must have and does not.
SELECT position, 'a row' AS wanted, 'none' AS found FROM wanted ANTI JOIN found USING (position)
