-- Records that a stage of ours has ended on, as their dead letters tell: rejected by that stage, whatever the reference makes of them.
UPDATE parsed SET stage = letters.stage
FROM letters
WHERE parsed.position = letters.position AND letters.code = 'internal_error'
