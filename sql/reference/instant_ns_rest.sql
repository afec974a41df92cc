-- The nanoseconds of an instant's text beyond its microseconds: 0 to 999.
CREATE MACRO tf_instant_ns_rest(t) AS
    coalesce(try_cast(rpad(regexp_extract(t, '\.[0-9]{6}([0-9]{1,3})', 1), 3, '0') AS BIGINT), 0)
