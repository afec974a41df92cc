-- Rows of a table without positions, by a hash of what they hold: how many the table must have (`wanted`), may have besides (`pending`), and has.
CREATE TABLE multiset AS
SELECT h, count(*) FILTER (side = 'wanted') AS wanted, count(*) FILTER (side = 'pending') AS pending,
       count(*) FILTER (side = 'found') AS found, min(position) AS position
FROM (
    SELECT hash($columns) AS h, position, CASE WHEN position <= $confirmed AND position NOT IN (SELECT position FROM open_lefts) THEN 'wanted' ELSE 'pending' END AS side FROM expected
    UNION ALL
    SELECT hash($columns), NULL, 'found' FROM found
)
GROUP BY h
HAVING wanted > found OR found > wanted + pending
