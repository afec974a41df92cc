-- Keys whose records lie less than a window apart: the first one, if none was accepted before.
INSERT INTO accepted SELECT first_position FROM keys_with_copies WHERE is_one_window AND seed_us IS NULL
