"""The rules of lint: each with its code, what it finds, and how to fix it. Pure; takes a sound config.

A code is never given another meaning: files name it in comments.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain

from pipelines.config import PipelineConfig, analysis
from pipelines.config.base import Location
from pipelines.config.fields import Passed, all_passed, checked, joins
from pipelines.lint.reads import unread

Found = Iterator[tuple[Location, str]]
_FLOATS = {"float", "float32", "float64"}
_NAMES_A_TIME = re.compile(r"(?:^|[._])(?i:time|timestamp|date|datetime|at|ts)$|[a-z](?:At|Time|Timestamp|Date)$")
"""Names such as created_at, order.date and eventTime, and not format or candidate."""


@dataclass(frozen=True)
class Rule:
    """A rule. `summary`: what it finds, for the docs; `fix`: what to do. `of_connections`: it needs the values of the connections.

    `is_idle`: whether what stands at a location can be removed without any change of what the pipeline, or a command, does.
    """

    code: str
    summary: str
    fix: str
    find: Callable[[PipelineConfig], Found]
    of_connections: bool = False
    is_idle: Callable[[Location], bool] = lambda _: False


def _constant_conditions(config: PipelineConfig) -> Found:
    for passed in all_passed(config):
        if passed.transform.type == "filter":
            for asked in passed.transform.config.expressions():
                if not checked(asked, passed.before, passed.transform.config.language).fields:
                    yield ("transforms", passed.index, "config", *asked.at), f"{asked.text!r} reads no field: all records pass, or none"


def _unread_fields(config: PipelineConfig) -> Found:
    return ((field.at, f"nothing reads {field.name!r}") for field in unread(config) if not field.is_computed)


def _unread_values(config: PipelineConfig) -> Found:
    return ((field.at, f"nothing reads the computed {field.name!r}") for field in unread(config) if field.is_computed)


def _dedups(config: PipelineConfig) -> Iterator[tuple[Passed, Location]]:
    return ((one, ("transforms", one.index, "config")) for one in all_passed(config) if one.transform.type == "dedup")


def _float_keys(config: PipelineConfig) -> Found:
    for passed, at in _dedups(config):
        for name in passed.transform.config.key:
            if passed.before[name] in _FLOATS:
                yield (*at, "key"), f"{name!r} is a float: values that look the same may be two keys"


def _no_lateness(config: PipelineConfig) -> Found:
    for passed, at in _dedups(config):
        dedup = passed.transform.config
        if dedup.time == "event" and dedup.allowed_lateness == timedelta(0):
            yield (
                (*at, "time_field"),
                "allowed_lateness is 0s: each record that is older than the one before it in its partition is rejected",
            )
    if joins(config) and config.join is not None and config.join.time == "event" and config.join.allowed_lateness == timedelta(0):
        yield (
            ("join", "time"),
            "allowed_lateness is 0s: each record that is older than the newest of the partition that is furthest behind is rejected",
        )


def _unmapped_keys(config: PipelineConfig) -> Found:
    for passed, at in _dedups(config):
        for sink in config.record_sinks if config.checks.duplicates.enabled else ():
            mapped = {column.name for column in sink.mapping}
            if missing := [name for name in passed.transform.config.key if name not in mapped]:
                yield (*at, "key"), f"{', '.join(missing)} has no column: the check `duplicates` cannot compare keys in table {sink.table}"


def _text_times(config: PipelineConfig) -> Found:
    types = {field.name: field.type for source in config.sources for field in source.schema_fields}
    columns = [((*seen.sink_at, "mapping", index), column) for seen in config.by_sink for index, column in enumerate(seen.sink.mapping)]
    for at, column in columns:
        is_text = column.column_type in ("String", "Nullable(String)", "LowCardinality(String)", "LowCardinality(Nullable(String))")
        if is_text and types.get(column.name) == "string" and _NAMES_A_TIME.search(column.name):
            yield (
                (*at, "column_type"),
                f"{column.name!r} is probably a time, and {column.column_type} keeps it as text",
            )


def _no_sorting_key(config: PipelineConfig) -> Found:
    for seen in config.by_sink:
        if seen.sink.create_table and not seen.sink.order_by:
            unsorted = "the table is created without order_by: it is sorted by position"
            yield (*seen.sink_at, "create_table"), f"{unsorted}, and queries by other columns read all of it"


def _unstated_beginning(config: PipelineConfig) -> Found:
    for index, source in enumerate(config.sources):
        if not {"consumer_group_initial_offset", "start_offsets", "start_group"} & source.model_fields_set:
            yield ("sources", index), "consumer_group_initial_offset is not given: the first start skips all that the topic holds"


def _connections(config: PipelineConfig) -> Found:
    return chain(analysis.kafka_connections(config), analysis.nats_connection(config), analysis.sink_connections(config))


RULES: tuple[Rule, ...] = (
    Rule(
        "TF001",
        "A filter whose condition reads no field.",
        "Remove the filter, or name the field that it should read.",
        _constant_conditions,
    ),
    Rule("TF002", "A field of the source that nothing reads; it can only reject records.", "Remove the field.", _unread_fields),
    Rule("TF003", "A computed field that nothing reads.", "Remove the field, or map it to a column.", _unread_values),
    Rule(
        "TF004", "A float in a dedup key.", "Use an integer or a string as the key, or compute one, such as a rounded decimal.", _float_keys
    ),
    Rule(
        "TF005",
        "A dedup window that is longer than the retention of raw.",
        "Raise resources.nats.stream.max_age, or shorten the window.",
        analysis.retention,
    ),
    Rule(
        "TF006",
        "Dedup, or a join, by event time that allows no lateness.",
        "Set allowed_lateness to the delay that your producers may have.",
        _no_lateness,
    ),
    Rule("TF007", "A dedup key without a column.", "Map the key to a column, or disable the check `duplicates`.", _unmapped_keys),
    Rule(
        "TF008", "A string that is named like a time, in a String column.", "Use DateTime64(3), or Date; or rename the field.", _text_times
    ),
    Rule("TF009", "A table that is created without order_by.", "Set order_by to the columns that queries filter by.", _no_sorting_key),
    Rule(
        "TF010",
        "A first start whose offset is not given.",
        "Write consumer_group_initial_offset: earliest, or latest.",
        _unstated_beginning,
    ),
    Rule(
        "TF011",
        "Transforms that run in another order than they are written in.",
        "Write them in that order, or set transforms_order.",
        analysis.order,
    ),
    Rule("TF012", "A secret that is written into the file.", "Write ${NAME} or {file: PATH}, and change the secret.", analysis.secrets),
    # `tallyflow ddl` prints order_by, also of a table that no start creates.
    Rule("TF013", "A setting without effect.", "Remove it.", analysis.ignored, is_idle=lambda at: at[-1] != "order_by"),
    Rule(
        "TF014",
        "A limit of the streams that could block the pipeline.",
        "Raise resources.nats.stream.max_bytes, or use fewer buckets.",
        analysis.limits,
    ),
    Rule(
        "TF015",
        "A connection to Kafka, NATS or ClickHouse that others can read or impersonate, or an unlikely port.",
        "Use TLS and check certificates; give the HTTP port of ClickHouse.",
        _connections,
        of_connections=True,
    ),
    Rule(
        "TF016",
        "A sink that may write a row twice.",
        "Remove delivery: at_least_once, if the table can drop repeated inserts.",
        analysis.deliveries,
    ),
    Rule(
        "TF017",
        "Sinks that may all leave a record.",
        "Give one sink `default: true`, or no `when`.",
        analysis.routes,
    ),
)
