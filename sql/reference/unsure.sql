-- Records of the range before the replayed ones that have no row: they may be copies of records that are purged.
INSERT INTO dropped
SELECT position, 'unsure' FROM parsed ANTI JOIN accepted_before USING (position)
WHERE position >= $first AND position < $first_replayed AND stage IS NULL AND is_first AND NOT is_past
