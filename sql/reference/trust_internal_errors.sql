-- Records that a stage of ours has ended on, as their dead letters show: rejected by that stage, whatever the reference makes of them.
UPDATE $table SET stage = dead_letters.stage
FROM dead_letters
WHERE $table.position = dead_letters.position AND dead_letters.code IN ($codes)$only
