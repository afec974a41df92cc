-- Late records of the range that may be copies of purged ones: a copy is dropped, another one is a dead letter.
INSERT INTO open_lefts
SELECT position, 'purged' FROM sides SEMI JOIN undecided_copies USING (position) WHERE stage = 'join' AND position BETWEEN $first AND $last
