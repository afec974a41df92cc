-- Rows that the table must have once and has more often.
SELECT position, 'one row' AS wanted, count(*) || ' rows' AS found
FROM found SEMI JOIN wanted USING (position, emit) GROUP BY position, emit HAVING count(*) > 1
