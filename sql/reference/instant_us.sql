-- Microseconds since 1970, UTC, of an instant's text, cut to the microsecond; NULL for a text that is none. Without a zone it is UTC.
CREATE MACRO tf_instant_us(t) AS
    CASE
        WHEN regexp_full_match(
            t,
            '[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)?'
        )
        THEN epoch_us(try_cast(
            CASE WHEN length(t) > 26 THEN regexp_replace(t, '(\.[0-9]{6})[0-9]+', '\1') ELSE t END AS TIMESTAMPTZ
        ))
    END
