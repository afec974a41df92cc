-- n / d towards the past, as instants are cut.
CREATE MACRO tf_floor_divide(n, d) AS (n - ((n % d) + d) % d) // d
