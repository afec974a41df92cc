"""Out to ClickHouse: frames to chunks to inserts, one token per chunk."""
