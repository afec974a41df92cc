-- The text of an IPv6 address with its IPv4 tail, if there is one, as two groups; an IPv4 address as ::ffff:a.b.c.d.
CREATE MACRO tf_ipv6_groups(t) AS
    CASE
        WHEN regexp_full_match(t, '(.*:)?((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])')
        THEN CASE WHEN contains(t, ':') THEN regexp_extract(t, '^(.*:)', 1) ELSE '::ffff:' END
             || printf(
                    '%02x%02x:%02x%02x',
                    regexp_extract(t, '([0-9]+)\.[0-9]+\.[0-9]+\.[0-9]+$', 1)::INTEGER,
                    regexp_extract(t, '([0-9]+)\.[0-9]+\.[0-9]+$', 1)::INTEGER,
                    regexp_extract(t, '([0-9]+)\.[0-9]+$', 1)::INTEGER,
                    regexp_extract(t, '([0-9]+)$', 1)::INTEGER
                )
        ELSE t
    END
