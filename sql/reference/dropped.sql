-- The copies.
INSERT INTO dropped SELECT position, 'copy' FROM judged SEMI JOIN contested USING (key) ANTI JOIN accepted USING (position)
