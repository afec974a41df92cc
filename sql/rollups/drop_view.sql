-- Removes a view, waiting until it is gone. Names with a dollar sign stand for checked identifiers.
DROP VIEW IF EXISTS $database.$view SYNC
