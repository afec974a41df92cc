-- Sums of one group in steps of equal length that end at one instant, in seconds since 1970, each beside the first bucket of the group.
-- Names with a dollar sign stand for checked text.
SELECT
    {until:Int64} - intDiv({until:Int64} - 1 - toUnixTimestamp64Second(bucket), {step:Int64}) * {step:Int64} - {step:Int64} AS begin,
    (SELECT min(toUnixTimestamp64Second(bucket)) FROM $database.$target WHERE true$group) AS first,
    $sums
FROM $database.$target
WHERE bucket >= fromUnixTimestamp64Second({since:Int64}, 'UTC') AND bucket < fromUnixTimestamp64Second({until:Int64}, 'UTC')$group
GROUP BY begin
ORDER BY begin
