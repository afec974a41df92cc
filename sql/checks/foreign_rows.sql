-- Rows of another topic than the pipeline's, or of none.
SELECT count()
FROM {database:Identifier}.{table:Identifier}
WHERE _tf_topic != {topic:String}
