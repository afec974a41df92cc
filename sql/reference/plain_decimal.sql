-- The shortest text of a decimal number: no leading zeros but one before the point, no trailing ones, no -0.
CREATE MACRO tf_plain_decimal(t) AS
    regexp_replace(
        regexp_replace(regexp_replace(regexp_replace(t, '(\.[0-9]*?)0+$', '\1'), '\.$', ''), '^(-?)0+([0-9])', '\1\2'),
        '^-0$', '0'
    )
