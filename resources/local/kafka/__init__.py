"""A local Kafka broker."""
