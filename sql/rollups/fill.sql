-- Adds the rows of one range of positions to a target. Names with a dollar sign stand for checked text.
INSERT INTO $database.$target ($columns)
$select
