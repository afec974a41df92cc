-- Rows of other topics than the pipeline's, or of none.
SELECT count()
FROM {database:Identifier}.{table:Identifier}
WHERE NOT has({topics:Array(String)}, _tf_topic)
