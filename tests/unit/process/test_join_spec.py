"""The join of a file as the join takes it: a file of GlassFlow's, and keys that could never meet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.config.transforms import Join
from pipelines.key_store.storage import Storage
from pipelines.process.dedup import with_keys
from pipelines.process.join.rows import join
from pipelines.process.join.sides import Frames, Side, Windows
from pipelines.process.join.spec import JoinSpec
from pipelines.process.join.stores import JoinStores
from pipelines.protocol.bodies import NEVER
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


def spec(**changes: Any) -> JoinSpec:
    return JoinSpec.of_file(Join.model_validate(GLASSFLOW | changes), TYPES)


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
    found = spec()
    assert (found.left.source_id, found.left.key, found.right.key, found.unmatched) == ("orders", ("user.id",), ("id",), "drop")
    assert found.windows == Windows(3_600_000_000, 7 * 24 * 3_600_000_000)
    assert found.left.fields.names == ["order_id", "total", "_tf_topic", "_tf_partition", "_tf_offset"]
    assert found.right.fields == pa.schema([("user_name", pa.string())])


@pytest.mark.parametrize("unmatched", ["drop", "emit", "dead_letter"])
def test_what_becomes_of_the_unmatched_is_read(unmatched: str) -> None:
    assert spec(unmatched=unmatched).unmatched == unmatched


def test_several_fields_are_one_key() -> None:
    left = {**GLASSFLOW["left_source"], "key": ["user.id", "order_id"]}
    right = {**GLASSFLOW["right_source"], "key": ["id", "order_id"]}
    assert spec(left_source=left, right_source=right).left.key == ("user.id", "order_id")


def test_keys_that_are_never_equal_are_a_fault() -> None:
    with pytest.raises(ValueError, match=r"'user.id' is int64 and 'name' is string: keys of these types are never equal"):
        spec(right_source={**GLASSFLOW["right_source"], "key": "name"})


def test_records_of_two_sources_become_a_joined_record(engine: Engine, tmp_path: Path) -> None:
    found = spec()
    orders = table({"order_id": pa.array(["a", "b"]), "user.id": pa.array([7, 8]), "amount": pa.array([1.5, 2.5])}, 2)
    users = table({"id": pa.array([7], pa.int32()), "name": pa.array(["Ada"]), "order_id": pa.array(["x"])}, 1)
    sides = [
        Side.of(side.renamed(with_keys(engine, rows, side.key).accepted), side.fields)
        for side, rows in ((found.left, orders), (found.right, users))
    ]
    fields = (found.right.fields, found.left.fields)
    stores = JoinStores(Storage.local(tmp_path / "right"), Storage.local(tmp_path / "left"), fields, found.windows)
    frames = Frames(np.array([1, 2], dtype=np.uint64), np.array([1, 2]), NEVER)
    (part,) = join(sides[0], sides[1], frames, stores).slices(with_unmatched=False)
    (row,) = part.rows.to_pylist()
    assert (row["order_id"], row["user_name"], row["total"]) == ("a", "Ada", 1.5)
    assert (row["_tf_sequence"], row["_tf_topic"], row["_tf_partition"], row["_tf_offset"]) == (2, "topic", 3, 40)
    assert (row["_tf_right_sequence"], row["_tf_right_ordinal"]) == (1, 0)
