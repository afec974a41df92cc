"""The world of the lanes' model: lanes, driver and tasks over an in-memory log, Kafka, table and segment storage."""
