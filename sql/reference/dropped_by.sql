-- Records that a step without state drops with one outcome; behind dedup, those that dedup has accepted, as `accepted_before` says. Steps of one
-- kind count together.
SELECT position FROM parsed
WHERE (stage = '$stage' OR stage IS NULL AND then_dropped = '$stage' AND position IN (FROM accepted_before))
  AND is_first AND position BETWEEN $first AND $last
