-- The SELECT of views by their names, as the server writes it in one line; of a plain view, too.
SELECT name, formatQuerySingleLine(as_select)
FROM system.tables
WHERE database = {database:String} AND name IN {names:Array(String)} AND as_select != ''
