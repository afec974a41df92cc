-- Adds the rows of one range of positions to a target. Names with a dollar sign stand for checked text. In order, as ClickHouse counts the
-- blocks of a SELECT into the name of what it inserts: without, their number depends on parts and threads.
INSERT INTO $database.$target ($columns)
SELECT $columns FROM (
$select
) ORDER BY $keys
