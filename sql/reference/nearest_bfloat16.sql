-- The nearest number with eight binary digits, halves to even, as BFloat16 has it; below 2^-126 with fewer. Zero keeps its sign.
CREATE MACRO tf_nearest_bfloat16(x) AS
    CASE
        WHEN x = 0 THEN x
        ELSE list_transform(
            [pow(2::DOUBLE, greatest(floor(log2(abs(x))), -126) - 7)],
            lambda digit: round_even(x / digit, 0) * digit
        )[1]
    END
