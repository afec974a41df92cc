-- Fields to the values that the columns must hold: a record of which one has no place in its column is rejected, for all sinks that would take
-- it; one that none takes ends here. `is_here`: the sink of the values takes it.
SELECT * REPLACE (coalesce(stage, CASE WHEN NOT ($is_mapped) THEN 'transform' WHEN NOT ($is_taken) THEN 'dropped.unrouted' END) AS stage),
       $is_here AS is_here$values
FROM ($rows)
