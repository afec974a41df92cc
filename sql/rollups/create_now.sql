-- The windows of the newest refresh. Names with a dollar sign stand for checked identifiers.
CREATE VIEW IF NOT EXISTS $database.$now AS
$select
