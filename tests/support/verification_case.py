"""Stage configurations of the verification's unit tests: without dedup, by arrival, by the time of the event."""

from dataclasses import replace

from pipelines.process.stage_config import RELEASE, StageConfig

SECOND = 1_000_000
CONFIG = StageConfig(
    release=RELEASE,
    source="events",
    topic="orders",
    buckets=8,
    fields=(("id", "int"), ("a.b", "string"), ("at", "int")),
    mapping=(("id", "id", "Nullable(Int64)", False), ("a.b", "name", "String", False)),
    database="default",
    table="t",
    position_columns=("_tf_sequence", "_tf_ordinal"),
)
KEYED = replace(CONFIG, dedup_key=("id",), dedup_window_us=10 * SECOND)
TIMED = replace(KEYED, dedup_time_field="at", dedup_lateness_us=3 * SECOND, dedup_max_ahead_us=3_600 * SECOND)
