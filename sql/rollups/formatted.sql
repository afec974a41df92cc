-- A query as the server writes it in one line.
SELECT formatQuerySingleLine({query:String})
