"""The audit: every position counted again, from Kafka, the streams and the table themselves. `run.py` reads, `account.py` compares."""
