-- The view that feeds a target with every insert of rows behind a position. Names with a dollar sign stand for checked text.
CREATE MATERIALIZED VIEW IF NOT EXISTS $database.$view TO $database.$target ($columns) AS
$select
