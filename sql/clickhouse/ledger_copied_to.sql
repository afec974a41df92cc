-- The last ledger sequence of a pipeline that the table holds, 0 for none. Names with a dollar sign stand for checked identifiers.
SELECT max(sequence)
FROM $database.$table
WHERE pipeline = {pipeline:String} AND stream_id = {stream_id:String}
