"""A local ClickHouse server around the engine of chdb."""
