-- The 32 hexadecimal digits of an IPv6 address (an IPv4 one is ::ffff:a.b.c.d); NULL for any other text. `::` is at least one group of zeros.
CREATE MACRO tf_ipv6_hex(t) AS
    CASE
        WHEN NOT regexp_full_match(tf_ipv6_groups(t), '(?i)([0-9a-f]{1,4}(:[0-9a-f]{1,4})*)?(::)?([0-9a-f]{1,4}(:[0-9a-f]{1,4})*)?') THEN NULL
        WHEN contains(t, '::') AND len(tf_ipv6_side(tf_ipv6_groups(t), 1)) + len(tf_ipv6_side(tf_ipv6_groups(t), 2)) <= 7
             OR NOT contains(t, ':') AND contains(tf_ipv6_groups(t), '::')
             OR NOT contains(t, '::') AND len(tf_ipv6_side(tf_ipv6_groups(t), 1)) = 8
        THEN upper(
            coalesce(array_to_string(tf_ipv6_side(tf_ipv6_groups(t), 1), ''), '')
            || repeat('0000', (8 - len(tf_ipv6_side(tf_ipv6_groups(t), 1)) - len(tf_ipv6_side(tf_ipv6_groups(t), 2)))::BIGINT)
            || coalesce(array_to_string(tf_ipv6_side(tf_ipv6_groups(t), 2), ''), '')
        )
    END
