"""Rollups in ClickHouse: their tables and views, and the rows from before these."""
