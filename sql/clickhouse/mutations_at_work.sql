-- The mutations of a table that are not done, by the reason why they fail, empty for those that do not.
SELECT latest_fail_reason, count()
FROM system.mutations
WHERE database = {database:String} AND table = {name:String} AND NOT is_done
GROUP BY latest_fail_reason
