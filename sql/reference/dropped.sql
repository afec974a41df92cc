-- The copies.
INSERT INTO dropped SELECT position, 'copy' FROM replayed SEMI JOIN keys_with_copies USING (key) ANTI JOIN accepted USING (position)
