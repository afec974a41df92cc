"""The names of a pipeline's assets, the last part of their keys, in the order of the data."""

from pipelines.protocol.topology import LegId

RAW = "raw_stream"
DEDUP = "dedup_store"
JOIN = "join_stores"
OUT = "out_stream"
TABLE = "clickhouse_table"
DEAD_LETTERS = "dead_letters"
PUBLISHED = "published"
COMPACTIONS = {DEDUP: "dedup_compaction", JOIN: "join_compaction"}
"""The compaction of each kind of key store."""
REPROCESSED = "reprocessed_letters"
VERIFICATION = "verification"


def table_name(leg: LegId) -> str:
    """Return the name of the table of a sink leg: TABLE, and for every further sink TABLE and its id."""
    return f"{TABLE}_{leg.name}" if leg.name else TABLE


def published_name(leg: LegId) -> str:
    """Return the name of the publication of the table of a sink leg: PUBLISHED, and for every further sink PUBLISHED and its id."""
    return f"{PUBLISHED}_{leg.name}" if leg.name else PUBLISHED


ALL = (RAW, DEDUP, JOIN, OUT, TABLE, DEAD_LETTERS, PUBLISHED, *COMPACTIONS.values(), REPROCESSED, VERIFICATION)
