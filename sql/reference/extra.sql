-- Positions that the table has and must not have, with what the reference knows of them.
SELECT found.position, any_value(CASE
           WHEN parsed.position IS NULL THEN 'no such raw record'
           WHEN parsed.stage = 'dropped.waiting' THEN 'no row: waits in the join'
           WHEN parsed.stage = 'dropped.kept' THEN 'no row: a right record of the join'
           WHEN parsed.stage = 'dropped.unmatched' THEN 'no row: unmatched by the join'
           WHEN starts_with(parsed.stage, 'dropped.') THEN 'no row: dropped by ' || substr(parsed.stage, 9)
           WHEN parsed.stage IS NOT NULL THEN 'no row: ' || parsed.stage || ' rejects the record'
           WHEN dropped.why IS NULL AND parsed.then_dropped IS NOT NULL THEN 'no row: dropped by ' || substr(parsed.then_dropped, 9)
           WHEN parsed.then_dropped IS NULL AND NOT coalesce(same.is_here, parsed.is_here) THEN 'no row: another sink takes the record, this one does not'
           WHEN dropped.why IS NOT NULL THEN 'no row: a copy of an earlier record of its key'
           WHEN same.position IS NULL THEN 'no row ' || found.emit || ' of the record'
           ELSE 'no row: a dead letter says that ClickHouse refused it'
       END) AS wanted, 'a row' AS found
FROM found ANTI JOIN wanted USING (position, emit)
    LEFT JOIN (FROM parsed WHERE is_first) AS parsed ON parsed.position = found.position
    LEFT JOIN parsed AS same ON same.position = found.position AND same.emit = found.emit
    LEFT JOIN dropped ON dropped.position = found.position
GROUP BY found.position, found.emit
