-- Hashes of the lists of keys that objects at one path have, where no key stands twice; the most frequent ones.
SELECT hash(keys)
FROM (
    SELECT json_keys(document, $path) AS keys
    FROM (SELECT CASE WHEN json_valid(text) THEN text::JSON END AS document FROM (SELECT try(decode(value)) AS text FROM frames))
)
WHERE list_unique(keys) = len(keys)
GROUP BY keys ORDER BY count(*) DESC LIMIT $most
