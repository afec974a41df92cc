-- What an owner asks, in DuckDB: the figures of each restaurant in a window of $seconds that ends with the newest bucket of five minutes.
WITH orders AS (
    SELECT
        value->>'restaurant' AS restaurant,
        value->>'dish' AS dish,
        (value->>'quantity')::INTEGER AS quantity,
        (value->>'total')::DECIMAL(12, 2) AS total,
        (value->'customer'->>'id')::BIGINT AS customer,
        floor(epoch((value->>'ordered_at')::TIMESTAMPTZ) / 300)::BIGINT * 300 AS bucket
    FROM records
),
inside AS (
    SELECT * FROM orders WHERE bucket >= (SELECT max(bucket) + 300 FROM orders) - $seconds
),
figures AS (
    SELECT
        restaurant,
        count(*) AS orders,
        sum(total) AS sales,
        count(DISTINCT customer) AS customers,
        list_sort(list(total))[1 + floor(0.95::DOUBLE * count(*))::BIGINT] AS large_order
    FROM inside
    GROUP BY restaurant
),
dishes AS (
    SELECT restaurant, dish, sum(quantity) AS amount
    FROM inside
    GROUP BY restaurant, dish
    QUALIFY row_number() OVER (PARTITION BY restaurant ORDER BY sum(quantity) DESC, dish) <= 3
)
SELECT
    restaurant,
    any_value(orders)::VARCHAR,
    any_value(sales)::VARCHAR,
    any_value(customers)::VARCHAR,
    any_value(large_order)::VARCHAR,
    list({'item': dish, 'amount': amount::BIGINT::VARCHAR} ORDER BY amount DESC, dish)
FROM figures JOIN dishes USING (restaurant)
GROUP BY restaurant
ORDER BY restaurant
