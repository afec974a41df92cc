-- Whether a table has constraints, which might refuse rows once others are deleted, and projections, which hinder a DELETE.
SELECT match(create_table_query, '\\bCONSTRAINT\\b'), match(create_table_query, '\\bPROJECTION\\b')
FROM system.tables
WHERE database = {database:String} AND name = {name:String}
