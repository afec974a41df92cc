-- The rows of the newest refresh. Names with a dollar sign stand for checked identifiers.
SELECT * FROM $database.$refreshed WHERE refreshed_at = (SELECT max(refreshed_at) FROM $database.$refreshed)
