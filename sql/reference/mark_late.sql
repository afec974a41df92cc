-- A record older than its watermark is rejected by dedup; one that dedup had accepted before it was a dead letter is not judged again.
UPDATE parsed SET stage = 'dedup'
FROM watermarks
WHERE parsed.stage IS NULL AND NOT parsed.is_past
  AND parsed.position >> 20 = watermarks.sequence AND parsed.at_us < watermarks.watermark_us
