"""The rollups of a sink: which load, and in which words the others are refused, with their paths."""

import json
from typing import Any

import pytest

from pipelines.config import ClickHouseSink, PipelineConfig, notes, parse
from pipelines.errors import ConfigurationError
from pipelines.rollups.ddl import RollupStatements
from pipelines.rollups.feeds import feeds_of

COLUMNS = {
    "id": "Int64",
    "restaurant": "LowCardinality(String)",
    "note": "Nullable(String)",
    "tags": "Array(String)",
    "total": "Decimal(12, 2)",
    "weight": "Float64",
    "wide": "Int256",
    "ordered_at": "DateTime64(3)",
    "measured_at": "DateTime64(9)",
}
FIELDS = {"id": "int", "tags": "array", "weight": "float", "wide": "string"}
COUNT: dict[str, Any] = {"as": "orders", "count": True}
ROLLUP: dict[str, Any] = {"name": "stats", "group_by": ["restaurant"], "time": "ordered_at", "measures": [COUNT]}


def document(*rollups: dict[str, Any], **sink: Any) -> dict[str, Any]:
    source = {
        "type": "kafka",
        "topic": "t",
        "connection_params": {"brokers": ["k:9092"]},
        "schema_fields": [{"name": name, "type": FIELDS.get(name, "string")} for name in COLUMNS],
    }
    whole = {
        "type": "clickhouse",
        "connection_params": {"host": "127.0.0.1", "port": 8123},
        "table": "orders",
        "mapping": [{"name": name, "column_name": name, "column_type": kind} for name, kind in COLUMNS.items()],
        "rollups": rollups,
        **sink,
    }
    return {"version": "v3", "pipeline_id": "orders-1", "sources": [source], "sink": whole}


def parsed(*rollups: dict[str, Any], **sink: Any) -> PipelineConfig:
    return parse(json.dumps(document(*rollups, **sink)), name="test", environment={})


def faults_of(*rollups: dict[str, Any], **sink: Any) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        parsed(*rollups, **sink)
    return {fault.path: fault.message for fault in caught.value.faults}


def test_a_rollup_needs_a_name_a_time_and_a_measure() -> None:
    sink = parsed(ROLLUP).sink
    assert isinstance(sink, ClickHouseSink)
    (rollup,) = sink.rollups
    assert (rollup.target, rollup.refreshed, rollup.now, rollup.bucket_seconds) == ("stats_5m", "stats_refreshed", "stats_now", 300)
    assert {*faults_of({})} == {"sink.rollups[0].name", "sink.rollups[0].time", "sink.rollups[0].measures"}


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"group_by": ["restaurnt"]}, "group_by[0]", "the column 'restaurnt' is not in the mapping"),
        ({"group_by": ["note"]}, "group_by[0]", "is Nullable, and a row without it belongs to no group"),
        ({"group_by": ["tags"]}, "group_by[0]", "is Array(String), which has no simple values to tell apart"),
        ({"group_by": ["restaurant", "restaurant"]}, "group_by[1]", "the name 'restaurant' is used twice"),
        ({"time": "restaurant"}, "time", "is LowCardinality(String), a DateTime or a DateTime64 of up to 6 digits is needed"),
        ({"time": "measured_at"}, "time", "is DateTime64(9), a DateTime or a DateTime64 of up to 6 digits"),
        ({"bucket": "7m"}, "bucket", "must divide a day"),
        ({"bucket": "48h"}, "bucket", "must divide a day"),
        ({"bucket": "1500ms"}, "bucket", "must be whole seconds"),
        ({"windows": ["1h", "62m"]}, "windows[1]", "must be a multiple of the bucket (5m)"),
        ({"windows": ["60m", "1h"]}, "windows[1]", "1h is given twice"),
        ({"keep": "168h"}, "keep", "must be at least the largest window, 168h and a bucket and a refresh"),
        ({"name": "1; DROP TABLE orders"}, "name", "must be at most 60 letters, digits and underscores"),
        ({"measures": [{"as": "x"}]}, "measures[0]", "needs exactly one of count, sum, top, unique, quantile, and has none"),
        ({"measures": [COUNT | {"sum": {"column": "id"}}]}, "measures[0]", "and has count and sum"),
        ({"measures": [COUNT, COUNT]}, "measures[1].as", "the name 'orders' is used twice"),
        ({"measures": [{"as": "bucket", "count": True}]}, "measures[0].as", "'bucket' is a column of the rollup itself"),
        ({"measures": [{"as": "x", "sum": {"column": "weight"}}]}, "measures[0].sum.column", "map the field to a Decimal"),
        ({"measures": [{"as": "x", "sum": {"column": "wide"}}]}, "measures[0].sum.column", "an integer of up to 64 bits or a Decimal"),
        ({"measures": [{"as": "x", "top": {"column": "tags"}}]}, "measures[0].top.column", "no simple values"),
        ({"measures": [{"as": "x", "top": {"column": "note", "by": "note"}}]}, "measures[0].top.by", "an integer of up to 64 bits"),
        ({"measures": [{"as": "x", "top": {"column": "note", "n": 0}}]}, "measures[0].top.n", "1"),
        ({"measures": [{"as": "x", "unique": {"column": "nothing"}}]}, "measures[0].unique.column", "not in the mapping"),
        ({"measures": [{"as": "x", "quantile": {"column": "note", "q": 0.5}}]}, "measures[0].quantile.column", "a number is needed"),
        ({"measures": [{"as": "x", "quantile": {"column": "id", "q": 1}}]}, "measures[0].quantile.q", "less than 1"),
        ({"measures": [{"as": "view", "top": {"column": "note"}}]}, "measures", "would have the name 'stats_5m_view'"),
    ],
)
def test_a_rollup_that_cannot_be_one_is_refused_at_its_path(change: dict[str, Any], path: str, message: str) -> None:
    found = faults_of(ROLLUP | change)
    assert [*found] == [f"sink.rollups[0].{path}"]
    assert message in found[f"sink.rollups[0].{path}"]


def test_all_faults_of_all_rollups_are_reported_at_once() -> None:
    found = faults_of(ROLLUP | {"bucket": "7m", "group_by": ["x"]}, ROLLUP | {"name": "other", "time": "note"})
    assert {*found} == {"sink.rollups[0].bucket", "sink.rollups[0].group_by[0]", "sink.rollups[1].time"}


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ({"delivery": "at_least_once"}, "a row that is repeated would be counted twice"),
        ({"existing_rows": "keep"}, "rows of an earlier pipeline may share positions"),
    ],
)
def test_a_sink_that_may_repeat_positions_has_no_rollups(sink: dict[str, Any], message: str) -> None:
    assert message in faults_of(ROLLUP, **sink)["sink.rollups"]


def test_two_rollups_share_no_table() -> None:
    assert "also the name of sink.rollups[0]" in faults_of(ROLLUP, ROLLUP)["sink.rollups[1].name"]
    other = ROLLUP | {"name": "stats_5m", "measures": [{"as": "top", "top": {"column": "note"}}]}
    same = ROLLUP | {"measures": [COUNT, {"as": "5m_top", "top": {"column": "note"}}]}
    assert [*faults_of(same, other)] == ["sink.rollups[0].measures[1].as"]
    assert "also a name of the table of sink" in faults_of(ROLLUP, table="stats_5m")["sink.rollups[0].name"]


def test_a_fallback_has_no_rollups() -> None:
    whole = document(ROLLUP)
    sink = whole.pop("sink")
    fallback = {**sink, "id": "b", "table": "rest", "rollups": [{**ROLLUP, "name": "rest"}]}
    whole["sinks"] = [{**sink, "id": "a", "on_refused": {"sink": "b"}}, fallback]
    with pytest.raises(ConfigurationError, match=r"sinks\[1\]\.rollups: a fallback has none"):
        parse(json.dumps(whole), name="test", environment={})


def test_a_sink_without_rollups_ignores_their_creation_aloud() -> None:
    assert any("create_rollups: is ignored without rollups" in note for note in notes(parsed(create_rollups=True)))


def test_the_statements_quote_nothing_because_no_name_needs_it() -> None:
    measures = [COUNT, {"as": "sales", "sum": {"column": "total"}}, {"as": "best", "top": {"column": "note"}}]
    config = parsed(ROLLUP | {"measures": measures, "keep": "10d"})
    target, top, progress, view, top_view, *windows = RollupStatements(config).all(cut=7)
    assert "sales SimpleAggregateFunction(sum, Decimal(38, 2))" in target
    assert "TTL toDateTime(bucket) + INTERVAL 864000 SECOND" in target
    assert "ORDER BY (restaurant, bucket, item)" in top
    assert "CREATE TABLE IF NOT EXISTS default.stats_progress" in progress
    assert "WHERE source._tf_sequence > 7 GROUP BY" in view
    assert "WHERE source._tf_sequence > 7 AND source.note IS NOT NULL GROUP BY" in top_view
    assert [text.partition(" default.")[2].split()[0] for text in windows] == ["stats_refreshed", "stats_refreshed_view", "stats_now"]


def test_a_null_is_expected_in_all_columns_but_groups_and_time() -> None:
    """A table of the user's own may have a Nullable column where the file declares the base type: no view may raise on it."""
    measures = [{"as": "sales", "sum": {"column": "total"}}, {"as": "ids", "unique": {"column": "id"}}]
    (feed,) = feeds_of(parsed(ROLLUP | {"measures": measures}))
    assert all("'Nullable(" in column.value for column in feed.values)
