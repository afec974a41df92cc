-- Settings as they are in force for this request.
SELECT name, value
FROM system.settings
WHERE name IN ($names)
