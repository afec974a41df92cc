-- Whether every number in a JSON text is finite. Only suspicious texts are looked at closely: without their strings, number by number.
CREATE MACRO tf_is_finite_json(t) AS
    CASE
        WHEN NOT regexp_matches(t, '(?i)nan|inf|e[+]?[0-9]{2}|[0-9]{200}') THEN true
        ELSE len(list_filter(
            regexp_extract_all(regexp_replace(t, '"(?:[^"\\]|\\.)*"', '', 'g'), '(?i)-?(?:nan|inf(?:inity)?|[0-9][0-9.]*(?:e[-+]?[0-9]+)?)'),
            lambda number: NOT coalesce(isfinite(try_cast(number AS DOUBLE)), false)
        )) = 0
    END
