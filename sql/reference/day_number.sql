-- Days since 1970-01-01 of a text `YYYY-MM-DD`; NULL for another text and for a day that no month has.
CREATE MACRO tf_day_number(t) AS
    CASE
        WHEN regexp_full_match(t, '[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])')
        THEN date_diff('day', DATE '1970-01-01', try_cast(t AS DATE))
    END
