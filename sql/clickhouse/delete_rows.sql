-- Deletes the rows of a range of raw sequences, inclusive; of a shared table those of one pipeline.
DELETE FROM $database.$table
WHERE _tf_sequence BETWEEN $first AND $last$owned
