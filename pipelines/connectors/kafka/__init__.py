"""Kafka: the client, its settings, its records."""
