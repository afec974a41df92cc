"""NATS JetStream: the client, its settings, its messages, its errors."""
