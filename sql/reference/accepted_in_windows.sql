-- The other keys, by arrival, which never steps back: after an accepted record, the first one that arrives a window later, or more.
-- Of the records of one key and one arrival only the first can be accepted.
INSERT INTO accepted
WITH RECURSIVE
long AS MATERIALIZED (SELECT key, seed_us FROM keys_with_copies WHERE NOT is_one_window),
turns AS MATERIALIZED (SELECT key, at_us, min(position) AS position FROM replayed SEMI JOIN long USING (key) GROUP BY key, at_us),
following AS MATERIALIZED (
    SELECT turns.key, turns.at_us, later.at_us AS later_us, later.position
    FROM turns ASOF JOIN turns AS later ON turns.key = later.key AND turns.at_us + $window_us <= later.at_us
),
chain AS (
    SELECT key, min(at_us) AS at_us, min(position) AS position FROM turns SEMI JOIN (FROM long WHERE seed_us IS NULL) USING (key) GROUP BY key
    UNION ALL
    SELECT long.key, turns.at_us, turns.position
    FROM (FROM long WHERE seed_us IS NOT NULL) AS long ASOF JOIN turns ON long.key = turns.key AND long.seed_us + $window_us <= turns.at_us
    UNION ALL
    SELECT following.key, following.later_us, following.position FROM chain JOIN following USING (key, at_us)
)
SELECT position FROM chain
