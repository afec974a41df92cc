"""A ClickHouse table as a sink: the table, and its memory of insert tokens, are checked before the first insert."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial

from pipelines.config import PipelineConfig
from pipelines.config.sinks import PIPELINE_COLUMN
from pipelines.config.text import path_text
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.clickhouse.settings import MAX_PARTITIONS_PER_INSERT
from pipelines.connectors.sinks import PIPELINE_TYPE, Table, TableColumn, declared_columns
from pipelines.connectors.sql import filled
from pipelines.counts import count_of
from pipelines.errors import ConfigurationError, Fault, HaltError
from pipelines.protocol.records import POSITION_COLUMN_TYPES
from pipelines.types.columns import parse_type, quote_identifier, quote_string

CREATED_DEDUP_WINDOW = 10_000
MIN_DEDUP_WINDOW = 4
"""Tokens that a table must remember per lane and partition that one insert can touch: each partition gets its own block."""
MOST_SHARERS = 16
"""Pipelines of a shared table, whose tokens it must remember side by side."""
MIN_DEDUP_TIME = timedelta(days=7)
"""How long a Replicated table must remember tokens, unless the file sets another time."""


class ClickHouseTable(ClickHouse):
    """The table of a pipeline, as `connectors.sinks.Sink` says."""

    system = "ClickHouse"

    def __init__(self, pipeline: PipelineConfig) -> None:
        super().__init__(pipeline.sink, pipeline.on_error.classes("clickhouse"))
        self._pipeline = pipeline
        self.target = f"{pipeline.sink.connection_params.database}.{pipeline.sink.table}"

    def ensure(self) -> Table:
        """Return the target table, created if the file asks for it; checked for columns, types and its deduplication window."""
        sink = self._pipeline.sink
        database = sink.connection_params.database
        self.connect()
        table = self.inspect(database, sink.table)
        if table is None:
            if not sink.create_table:
                raise HaltError(f"checking table {self.target}: it does not exist; create it, or set `create_table: true` in the sink")
            self.command(f"creating table {self.target}", create_statement(self._pipeline))
            table = self.inspect(database, sink.table)
            if table is None:
                raise HaltError(f"creating table {self.target}: it was created but does not exist; is another process dropping it?")
        for check in self.checks(table):
            check()
        return table

    def alter(self, statement: str) -> None:
        self.connect()
        self.command(f"altering table {self.target} ({statement})", statement)

    def checks(self, table: Table) -> Iterator[Callable[[], None]]:
        sink = self._pipeline.sink
        yield partial(check_columns, self._pipeline, table)
        if sink.delivery == "exactly_once":
            yield self.check_insert_settings
            for target in [table, *self.filled_from(table.views)]:
                yield partial(
                    _check_window,
                    target,
                    sink.max_outage or MIN_DEDUP_TIME,
                    self._pipeline.lanes * (MOST_SHARERS if sink.names_pipeline else 1),
                )


def create_statement(config: PipelineConfig) -> str:
    """Return the statement that creates the target table: a MergeTree that remembers insert tokens."""
    return filled(
        "clickhouse/create_table",
        database=quote_identifier(config.sink.connection_params.database),
        table=quote_identifier(config.sink.table),
        columns=",".join(f"\n    {quote_identifier(name)} {kind}" for name, kind in declared_columns(config)) + "\n",
        order_by=", ".join(map(quote_identifier, config.sink.order_by or ("_tf_sequence", "_tf_ordinal", "_tf_emit"))),
        window=CREATED_DEDUP_WINDOW,
    )


def check_columns(config: PipelineConfig, table: Table) -> None:
    """Raise ConfigurationError, with every fault, if the table's columns do not fit the mapping."""
    faults = column_faults(config, table.columns)
    if faults:
        raise ConfigurationError(f"table {table.full_name} does not fit the mapping", faults)


def column_faults(config: PipelineConfig, columns: Sequence[TableColumn]) -> list[Fault]:
    """List why the mapping and the position columns cannot be inserted into a table with these columns; empty if they can."""
    actual = {column.name: column for column in columns}
    faults = []
    for index, entry in enumerate(config.sink.mapping):
        path = path_text((*config.sink_at, "mapping", index))
        column = actual.get(entry.column_name)
        if column is None:
            faults.append(Fault(f"{path}.column_name", f"the table has no column {entry.column_name!r}"))
        elif column.default_kind in ("MATERIALIZED", "ALIAS"):
            faults.append(Fault(f"{path}.column_name", f"column {entry.column_name!r} is {column.default_kind} and cannot be inserted"))
        elif not fits(entry.column_type, column.type):
            difference = f"column {entry.column_name!r} is {column.type}, the file has {entry.column_type}"
            faults.append(Fault(f"{path}.column_type", difference))
    for name, kind in POSITION_COLUMN_TYPES:
        if name in actual and actual[name].type != kind:
            faults.append(Fault(path_text((*config.sink_at, "table")), f"position column {name} is {actual[name].type}, not {kind}"))
    if config.sink.names_pipeline:
        faults += [Fault(path_text((*config.sink_at, "shared_table")), fault) for fault in _sharing_faults(config, actual)]
    return faults


def _sharing_faults(config: PipelineConfig, actual: Mapping[str, TableColumn]) -> Iterator[str]:
    """Yield what a table lacks whose rows are to name their pipeline."""
    if missing := [name for name, _ in POSITION_COLUMN_TYPES if name not in actual]:
        yield f"a shared table needs the position columns, and has no {', '.join(missing)}"
    owner = actual.get(PIPELINE_COLUMN)
    if owner is None:
        yield (
            f"the table has no column {PIPELINE_COLUMN}; the rows that are there must be this pipeline's: ALTER TABLE "
            f"{config.sink.connection_params.database}.{config.sink.table} {add_owner(config)}, or `tallyflow apply`"
        )
    elif owner.type != PIPELINE_TYPE:
        yield f"column {PIPELINE_COLUMN} is {owner.type}, not {PIPELINE_TYPE}"


def add_owner(config: PipelineConfig) -> str:
    """Return the change of a table that is shared from now on: the rows that it holds are this pipeline's."""
    return f"ADD COLUMN {PIPELINE_COLUMN} {PIPELINE_TYPE} DEFAULT {quote_string(config.pipeline_id)}"


def fits(declared: str, actual: str) -> bool:
    """Return True for the declared type, also as Nullable or LowCardinality: GlassFlow's files declare the base type."""
    wanted = str(parse_type(declared))
    return actual in (wanted, f"Nullable({wanted})", f"LowCardinality({wanted})", f"LowCardinality(Nullable({wanted}))")


def _check_window(table: Table, longest_outage: timedelta, lanes: int = 1) -> None:
    if "MergeTree" not in table.engine:
        raise HaltError(
            f"checking table {table.full_name}: engine {table.engine} does not deduplicate inserts, so exactly-once is not possible; "
            "use a MergeTree engine, or set `delivery: at_least_once` in the sink"
        )
    needed = MIN_DEDUP_WINDOW * lanes * (MAX_PARTITIONS_PER_INSERT if table.is_partitioned else 1)
    setting = "replicated_deduplication_window" if table.is_replicated else "non_replicated_deduplication_window"
    if table.dedup_window < needed:
        of_lanes = f"{count_of(lanes, 'lane')} at once" if lanes > 1 else ""
        of_partitions = f"{MAX_PARTITIONS_PER_INSERT} partitions of an insert" if table.is_partitioned else ""
        counted = " and ".join(filter(None, (of_partitions, of_lanes)))
        why = f" ({MIN_DEDUP_WINDOW} for each of {counted})" if counted else ""
        raise _window_halt(
            table,
            f"{count_of(table.dedup_window, 'insert token')}, exactly-once needs at least {needed}{why}",
            f"{setting} = {max(CREATED_DEDUP_WINDOW, needed)}",
        )
    seconds = math.ceil(longest_outage.total_seconds())
    if table.dedup_seconds is not None and table.dedup_seconds < seconds:
        raise _window_halt(
            table,
            f"insert tokens for {table.dedup_seconds} s, exactly-once needs at least {seconds} s",
            f"{setting}_seconds = {seconds}",
            "set `max_outage` of the sink to the longest time that the pipeline may be down, ",
        )


def _window_halt(table: Table, remembers: str, setting: str, other_way: str = "") -> HaltError:
    return HaltError(
        f"checking table {table.full_name}: it remembers {remembers}; run ALTER TABLE {table.full_name} MODIFY SETTING {setting}, "
        f"{other_way}or set `delivery: at_least_once` in the sink"
    )


SINK = ClickHouseTable
