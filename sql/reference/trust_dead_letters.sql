-- Records of which only their dead letter shows that a stage has ended on them, or that their row fits no frame: rejected by the letter's stage. How large a
-- row may be in a frame is not computed here: of records large enough for that, and rejected by nothing else, the dead letter is believed.
UPDATE $table SET stage = dead_letters.stage
FROM dead_letters
WHERE $table.position = dead_letters.position
  AND (code IN ($codes) OR code = 'row_too_large' AND $table.is_wide AND $table.stage IS NULL)$only
