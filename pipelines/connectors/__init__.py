"""The only sockets of the data path: Kafka, NATS and ClickHouse, and the DuckDB engine."""
