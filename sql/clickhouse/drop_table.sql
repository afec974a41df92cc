-- Removes a table and its rows, waiting until it is gone. Names with a dollar sign stand for checked identifiers.
DROP TABLE IF EXISTS $database.$table SYNC
