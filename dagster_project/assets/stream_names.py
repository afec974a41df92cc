"""The names of a pipeline's assets, the last part of their keys, in the order of the data."""

RAW = "raw_stream"
DEDUP = "dedup_store"
OUT = "out_stream"
TABLE = "clickhouse_table"
DEAD_LETTERS = "dead_letters"
PUBLISHED = "published"
COMPACTION = "dedup_compaction"
REPROCESSED = "reprocessed_letters"
VERIFICATION = "verification"
ALL = (RAW, DEDUP, OUT, TABLE, DEAD_LETTERS, PUBLISHED, COMPACTION, REPROCESSED, VERIFICATION)
