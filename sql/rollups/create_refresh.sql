-- The view that computes the windows again and again. It appends: a view that replaces its table needs a database of the engine Atomic.
-- Names with a dollar sign stand for checked text.
CREATE MATERIALIZED VIEW IF NOT EXISTS $database.$view REFRESH EVERY $seconds SECOND APPEND TO $database.$refreshed AS
$select
