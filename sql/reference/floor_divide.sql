-- n / d towards the past, as ClickHouse cuts instants.
CREATE MACRO tf_floor_divide(n, d) AS (n - ((n % d) + d) % d) // d
