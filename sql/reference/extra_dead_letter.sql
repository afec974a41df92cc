-- Rows of a table of dead letters at places of the dead-letter stream that hold none.
SELECT position, 'no such dead letter' AS wanted, 'a row' AS found FROM found ANTI JOIN wanted USING (position, emit) GROUP BY position
