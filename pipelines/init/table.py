"""The table that is proposed: codecs, sorting key, partitions, and the memory of insert tokens that exactly-once needs."""

from collections.abc import Sequence

from pipelines.connectors.sinks.clickhouse import CREATED_DEDUP_WINDOW
from pipelines.connectors.sql import filled
from pipelines.init.columns import Column
from pipelines.protocol.records import POSITION_COLUMN_TYPES
from pipelines.types.columns import parse_type, quote_identifier

_SORTED_BY = 2
"""Columns of few values that come first in the sorting key: more cut it into pieces too small for the time behind them."""


def order_by(columns: Sequence[Column], keys: Sequence[str]) -> list[str]:
    """Return the sorting key: columns of few values, the fewest first, then the time, then the likeliest key; none is Nullable.

    Empty if there is none of these: the position columns then sort the table.
    """
    plain = [column for column in columns if column.type and not column.is_nullable]
    few = sorted((column for column in plain if column.type.startswith("LowCardinality")), key=lambda column: column.facts.distinct)
    time = [column.name for column in plain if column.is_time][:1]
    key = [column.name for name in keys for column in plain if column.facts.name == name][:1]
    return list(dict.fromkeys([*(column.name for column in few[:_SORTED_BY]), *time, *key]))


def codec(column: Column) -> str:
    """Return the codec of a column: times and counters change little from row to row."""
    if "LowCardinality" in column.type or "Bool" in column.type:
        return ""
    is_ordered = column.is_time or column.type in ("Int64", "UInt64")
    return " CODEC(Delta, ZSTD(1))" if is_ordered else " CODEC(ZSTD(1))"


def statement_of(database: str, table: str, columns: Sequence[Column], keys: Sequence[str]) -> str:
    """Return the statement that creates the table, with the position columns."""
    written = [f"{quote_identifier(one.name)} {parse_type(one.type)}{codec(one)}" for one in columns if one.type]
    written += [f"{quote_identifier(name)} {kind}" for name, kind in POSITION_COLUMN_TYPES]
    sorted_by = order_by(columns, keys) or ["_tf_sequence", "_tf_ordinal", "_tf_emit"]
    time = next((one.name for one in columns if one.is_time and not one.is_nullable), "")
    text = filled(
        "clickhouse/proposed_table",
        database=quote_identifier(database),
        table=quote_identifier(table),
        columns=",".join(f"\n    {line}" for line in written) + "\n",
        partition_by=f"PARTITION BY toYYYYMM({quote_identifier(time)})" if time else "",
        order_by=", ".join(map(quote_identifier, sorted_by)),
        window=CREATED_DEDUP_WINDOW,
    )
    return "\n".join(line for line in text.splitlines() if line and not line.startswith("--")) + ";\n"
