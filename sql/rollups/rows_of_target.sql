-- The rows of a target, made of the rows of the table within positions. Names with a dollar sign stand for checked text.
SELECT $columns FROM $database.$table AS source WHERE $within$grouped
