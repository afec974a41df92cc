-- How far the targets of a rollup are filled, by attempt and cut. Names with a dollar sign stand for checked identifiers.
SELECT target, attempt, cut, max(filled_to), max(planned_to)
FROM $database.$progress
WHERE stream_id = {stream_id:String}
GROUP BY target, attempt, cut
ORDER BY target, attempt
