"""The names of a pipeline's assets, the last part of their keys, in the order of the data."""

from pipelines.config import PipelineConfig
from pipelines.protocol.topology import LegId

RAW = "raw_stream"
DEDUP = "dedup_store"
OUT = "out_stream"
TABLE = "clickhouse_table"
DEAD_LETTERS = "dead_letters"
PUBLISHED = "published"
COMPACTION = "dedup_compaction"
REPROCESSED = "reprocessed_letters"
VERIFICATION = "verification"


def table_name(pipeline: PipelineConfig, leg: LegId) -> str:
    """Return the name of the table of a sink: TABLE, and for every further sink TABLE and its id."""
    return TABLE if leg == pipeline.topology.sinks[0] else f"{TABLE}_{pipeline.topology.file_id(leg)}"


ALL = (RAW, DEDUP, OUT, TABLE, DEAD_LETTERS, PUBLISHED, COMPACTION, REPROCESSED, VERIFICATION)
