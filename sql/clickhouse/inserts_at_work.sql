-- How many inserts of one name the server works on.
SELECT count()
FROM system.processes
WHERE Settings['log_comment'] = {log_comment:String}
