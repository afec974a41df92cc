"""What an edit of a pipeline file changes, and what it needs of the pipeline that runs."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import yaml

from pipelines.config import PipelineConfig, parse
from pipelines.edits.changes import Change, Need, changes

DOCUMENT = {
    "version": "v3",
    "pipeline_id": "orders",
    "sources": [
        {
            "type": "kafka",
            "source_id": "orders",
            "topic": "orders",
            "connection_params": {
                "brokers": ["127.0.0.1:9092"],
                "username": "u",
                "password": "first",
                "mechanism": "PLAIN",
                "protocol": "SASL_PLAINTEXT",
            },
            "schema_fields": [{"name": "id", "type": "int"}, {"name": "amount", "type": "float"}],
        }
    ],
    "transforms": [{"type": "dedup", "source_id": "orders", "config": {"key": "id", "time_window": "1h"}}],
    "sink": {
        "type": "clickhouse",
        "connection_params": {"host": "127.0.0.1", "port": "8123", "database": "shop"},
        "table": "orders",
        "mapping": [
            {"name": "id", "column_name": "id", "column_type": "Int64"},
            {"name": "amount", "column_name": "amount", "column_type": "Float64"},
        ],
    },
}


def config(change: Callable[[Any], object] = lambda document: None) -> PipelineConfig:
    document = deepcopy(DOCUMENT)
    change(document)
    return parse(yaml.safe_dump(document), name="orders.yaml", environment={})


def found(change: Callable[[Any], object]) -> list[Change]:
    return changes(config(), config(change))


def test_the_same_file_has_no_change() -> None:
    assert found(lambda document: None) == []


NEEDS = {
    "a check": (lambda d: d.update(checks={"freshness": {"warn_after": "5m"}}), Need.NOTHING),
    "the window of dedup": (lambda d: d["transforms"][0]["config"].update(time_window="2h"), Need.RESTART),
    "a batch size": (lambda d: d["sink"].update(max_batch_size=5), Need.RELOAD),
    "what becomes of rejected records": (lambda d: d.update(on_error="halt"), Need.RELOAD),
    "what an error means": (lambda d: d.update(on_error={"clickhouse": {"TOO_MANY_PARTS": "halt"}}), Need.RESTART),
    "more lanes": (lambda d: d.update(lanes=2), Need.RESTART),
    "a look-up table": (lambda d: d.update(tables={"a": {"type": "csv", "uri": "a.csv", "key": "k", "refresh": "1m"}}), Need.RESTART),
    "a time of inserts": (lambda d: d["sink"].update(max_insert_time="10s"), Need.RESTART),
    "where a first start begins": (lambda d: d["sources"][0].update(start_offsets={"0": 5}), Need.FIRST_START),
    "behind whom a first start begins": (lambda d: d["sources"][0].update(start_group="old"), Need.FIRST_START),
    "the end at which a first start begins": (
        lambda d: d["sources"][0].update(consumer_group_initial_offset="earliest"),
        Need.FIRST_START,
    ),
    "settings and a window": (
        lambda d: (d["sink"].update(max_batch_size=5), d["transforms"][0]["config"].update(time_window="2h")),
        Need.RESTART,
    ),
    "the table": (lambda d: d["sink"].update(table="others"), Need.DRAIN),
    "the server": (lambda d: d["sink"]["connection_params"].update(host="other"), Need.DRAIN),
    "the buckets": (lambda d: d.update(buckets=8), Need.REBUCKET),
    "the key": (lambda d: d["transforms"][0]["config"].update(key="amount"), Need.NEW_PIPELINE),
    "the topic": (lambda d: d["sources"][0].update(topic="others"), Need.NEW_PIPELINE),
}


@pytest.mark.parametrize(("change", "need"), NEEDS.values(), ids=NEEDS)
def test_a_change_needs_no_more_than_it_must(change: Callable[[Any], object], need: Need) -> None:
    assert max(one.need for one in found(change)) == need


def test_fewer_lanes_need_no_restart() -> None:
    before, after = (config(lambda document, lanes=lanes: document.update(buckets=8, lanes=lanes)) for lanes in (4, 2))
    (fewer,), (more,) = changes(before, after), changes(after, before)
    assert (fewer.need, str(fewer)) == (Need.RELOAD, "was 4, now 2")
    assert more.need == Need.RESTART


def test_items_of_lists_are_compared_with_their_namesakes() -> None:
    column = {"name": "amount", "column_name": "more", "column_type": "Float64"}

    def edit(document: Any) -> None:
        document["sink"]["mapping"].insert(0, column)
        document["sink"]["mapping"][1]["column_type"] = "Int32"

    shown = [(one.path, str(one)) for one in found(edit)]
    assert ("sink.mapping[id].column_type", "was Int64, now Int32") in shown
    assert [path for path, text in shown if text.startswith("added")] == ["sink.mapping[more]"]
    assert not any("[amount]" in path for path, _ in shown)


def test_transforms_are_compared_by_their_place() -> None:
    (one,) = found(lambda document: document["transforms"][0]["config"].update(time_window="2h"))
    assert (one.path, str(one)) == ("transforms[0].config.time_window", "was 1h, now 2h")


def test_another_order_of_columns_is_a_change() -> None:
    (one,) = found(lambda document: document["sink"]["mapping"].reverse())
    assert (one.path, one.before, one.after) == ("sink.mapping", "id, amount", "amount, id")


def test_no_credential_is_shown() -> None:
    def edit(document: Any) -> None:
        document["sources"][0]["connection_params"].update(username="other-name", password="other-secret")
        document["nats"] = {"url": "nats://me:hidden@127.0.0.1:4333"}

    text = " ".join(f"{one.path} {one}" for one in found(edit))
    assert "username" in text
    assert not any(word in text for word in ("other-name", "other-secret", "hidden", "first"))


def test_the_buckets_of_a_join_may_change_its_keys_may_not() -> None:
    def joined(document: Any) -> None:
        right = deepcopy(document["sources"][0]) | {"source_id": "customers", "topic": "customers"}
        document["sources"].append(right)
        document["transforms"] = []
        document["join"] = {
            "enabled": True,
            "left_source": {"source_id": "orders", "key": "id", "time_window": "1m"},
            "right_source": {"source_id": "customers", "key": "id", "time_window": "1m"},
            "output_fields": [{"source_id": "orders", "name": "id"}, {"source_id": "customers", "name": "amount"}],
        }

    def with_buckets(document: Any) -> None:
        joined(document)
        document["buckets"] = 8

    def with_another_window(document: Any) -> None:
        joined(document)
        document["join"]["left_source"]["time_window"] = "2m"

    assert max(one.need for one in changes(config(joined), config(with_buckets))) == Need.REBUCKET
    assert max(one.need for one in changes(config(joined), config(with_another_window))) == Need.NEW_PIPELINE
