-- The other keys, by a field, which may step back: after an accepted record, the next one by position that lies a window away, or more.
-- That the accepted one's window is not over follows: a record within it that is not late lies behind its watermark.
INSERT INTO accepted
WITH RECURSIVE
long AS MATERIALIZED (SELECT key, seed_us, seed_position FROM keys_with_copies WHERE NOT is_one_window),
members AS MATERIALIZED (SELECT key, position, at_us FROM replayed SEMI JOIN long USING (key)),
chain AS (
    SELECT key, min(position) AS position, arg_min(at_us, position) AS at_us
    FROM members SEMI JOIN (FROM long WHERE seed_us IS NULL) USING (key) GROUP BY key
    UNION ALL
    SELECT key, seed_position, seed_us FROM long WHERE seed_us IS NOT NULL
    UNION ALL
    SELECT members.key, min(members.position), arg_min(members.at_us, members.position)
    FROM chain JOIN members ON members.key = chain.key AND members.position > chain.position AND abs(members.at_us - chain.at_us) >= $window_us
    GROUP BY members.key
)
SELECT position FROM chain WHERE position >= $first_replayed
