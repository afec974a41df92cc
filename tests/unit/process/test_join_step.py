"""The join as a step: of a file of GlassFlow's, keys that could never meet, and the records of two sources as the two sides."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pipelines.config.transforms import Join as JoinOfFile
from pipelines.process.join.sides import Windows
from pipelines.process.steps import Context, kinds
from pipelines.process.steps.join import IS_RIGHT_COLUMN, Join
from pipelines.protocol.records import INSTANT
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

TYPES = {
    "orders": {"order_id": "string", "user.id": "int64", "amount": "float64"},
    "users": {"id": "int32", "name": "string", "order_id": "string"},
}
GLASSFLOW: dict[str, Any] = {
    "enabled": True,
    "type": "temporal",
    "left_source": {"source_id": "orders", "key": "user.id", "time_window": "1h"},
    "right_source": {"source_id": "users", "key": "id", "time_window": "168h"},
    "output_fields": [
        {"source_id": "orders", "name": "order_id"},
        {"source_id": "users", "name": "name", "output_name": "user_name"},
        {"source_id": "orders", "name": "amount", "output_name": "total"},
    ],
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine() as opened:
        yield opened


def step(**changes: Any) -> Join:
    return Join.of_sources(JoinOfFile.model_validate(GLASSFLOW | changes), TYPES, {source: {} for source in TYPES})


def table(columns: dict[str, pa.Array], sequence: int) -> pa.Table:
    count = len(next(iter(columns.values())))
    position = {
        "_tf_sequence": pa.array([sequence] * count, pa.uint64()),
        "_tf_ordinal": pa.array(range(count), pa.uint32()),
        "_tf_topic": pa.array(["topic"] * count).dictionary_encode(),
        "_tf_partition": pa.array([3] * count, pa.int32()),
        "_tf_offset": pa.array(range(40, 40 + count), pa.int64()),
        "_tf_arrival": pa.array([sequence] * count, pa.int64()).cast(INSTANT),
    }
    return pa.table(columns | position)


def test_a_join_of_glassflows_is_read() -> None:
    found = step()
    assert (found.left.source, found.left.key, found.right.key, found.unmatched) == ("orders", ("user.id",), ("id",), "drop")
    assert found.windows == Windows(3_600_000_000, 7 * 24 * 3_600_000_000)
    right, left = found.stored
    assert left.names == ["order_id", "total", "_tf_topic", "_tf_partition", "_tf_offset", "_tf_sink"]
    assert right == pa.schema([("user_name", pa.string())])
    assert found.columns_out({}) == {"order_id": "string", "total": "float64", "user_name": "string"}


def test_a_join_is_read_back_as_it_was_written() -> None:
    assert kinds()["join"].decode(json.loads(json.dumps(step().encode()))) == step()


@pytest.mark.parametrize("unmatched", ["drop", "emit", "dead_letter"])
def test_what_becomes_of_the_unmatched_is_read(unmatched: str) -> None:
    assert step(unmatched=unmatched).unmatched == unmatched


def test_several_fields_are_one_key() -> None:
    left = {**GLASSFLOW["left_source"], "key": ["user.id", "order_id"]}
    right = {**GLASSFLOW["right_source"], "key": ["id", "order_id"]}
    assert step(left_source=left, right_source=right).left.key == ("user.id", "order_id")


def test_keys_that_are_never_equal_are_a_fault() -> None:
    with pytest.raises(ValueError, match=r"'user.id' is int64 and 'name' is string: keys of these types are never equal"):
        step(right_source={**GLASSFLOW["right_source"], "key": "name"})


def test_a_record_without_a_key_is_a_dead_letter(engine: Engine) -> None:
    columns = {"order_id": pa.array(["a", "b"]), "user.id": pa.array([7, None], pa.int64()), "amount": pa.array([1.5, 2.5])}
    made = step().of_source("orders").apply(Context(engine), table(columns, 2))
    (row,) = made.accepted.to_pylist()
    assert (row["order_id"], row["total"], row[IS_RIGHT_COLUMN], row["_tf_offset"]) == ("a", 1.5, False, 40)
    assert "user.id" not in row
    (letter,) = made.rejected.to_pylist()
    assert (letter["stage"], letter["code"], letter["field"], letter["_tf_ordinal"]) == ("join", "null_key", "user.id", 1)


def test_a_bucket_without_rows_has_two_empty_sides() -> None:
    assert [len(side) for side in step().sides(None)] == [0, 0]


def test_a_range_of_one_side_only_has_the_columns_of_both(engine: Engine) -> None:
    columns = {"id": pa.array([7], pa.int32()), "name": pa.array(["Ada"]), "order_id": pa.array(["x"])}
    left, right = step().sides(step().of_source("users").apply(Context(engine), table(columns, 1)).accepted)
    assert (len(left), len(right)) == (0, 1)
    assert right.payload.to_pylist() == [{"user_name": "Ada"}]


def test_two_sides_of_one_source_are_no_join() -> None:
    with pytest.raises(ValueError, match="a join has two sources, each with a window"):
        Join(step().left, step().left, "drop")
