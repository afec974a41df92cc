-- Keys with more than one record, the one accepted before included. All others have no copy.
CREATE OR REPLACE TABLE keys_with_copies AS
SELECT key, first_position, first_us, last_us, seeds.at_us AS seed_us, seeds.position AS seed_position,
       greatest(last_us, coalesce(seeds.at_us, last_us)) - least(first_us, coalesce(seeds.at_us, first_us)) < $window_us AS is_one_window
FROM (
    SELECT key, count(*) AS records, min(position) AS first_position, min(at_us) AS first_us, max(at_us) AS last_us
    FROM replayed GROUP BY key
)
LEFT JOIN seeds USING (key)
WHERE records > 1 OR seeds.key IS NOT NULL
