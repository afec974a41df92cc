-- Buckets in which the two sides differ in the number of rows or in a column.
CREATE TABLE mismatching AS
SELECT bucket FROM sums GROUP BY bucket
HAVING count(*) <> 2 OR $differs
