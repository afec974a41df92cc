-- For each table whether its sink takes the record; NULL where the condition fails. Each record is tried by itself: no guards, no rewriting.
SELECT record.*$routes
FROM (SELECT record$tried FROM (SELECT record$inputs FROM ($rows) AS record))
