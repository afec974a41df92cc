-- Positions that the table must have once and has more often.
SELECT position, 'one row' AS wanted, count(*) || ' rows' AS found FROM found SEMI JOIN wanted USING (position) GROUP BY position HAVING count(*) > 1
