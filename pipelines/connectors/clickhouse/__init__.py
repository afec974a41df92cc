"""ClickHouse: the client, its settings, its errors."""
