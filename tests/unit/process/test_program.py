"""A program as the legs run it: parse, dedup and the mapping over raw frames, without Spark and without a socket."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.engines import fresh_database
from support.programs import first_of, program

from pipelines.config import parse
from pipelines.config.docs import EXAMPLE
from pipelines.connectors.sinks import Table, TableColumn
from pipelines.errors import ConfigurationError
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore
from pipelines.process.arrivals import Arrived
from pipelines.process.buckets import key_owners, shares
from pipelines.process.compile import compile_program
from pipelines.process.run import run
from pipelines.process.steps import Context, Step
from pipelines.process.steps.dedup import Dedup
from pipelines.protocol.records import HEADER_PARTITION, HEADER_TOPIC, POSITION_COLUMNS, Message, StageOutput, empty_rejected, encode_frame
from pipelines.testing import records
from pipelines.types.duckdb import open_engine
from tests.support.programs import of_steps

HOUR_US = 3_600_000_000
FIELDS = (("id", "int"), ("city", "string"), ("price", "float"), ("tags", "array"))
COLUMNS = (
    ("city", "place", "LowCardinality(String)", False),
    ("price", "price", "Nullable(Float64)", False),
    ("tags", "tags", "String", False),
)
FRAMES = 6
_MEMBERS = "['id', 'city', 'price', 'tags']"
ORACLE = f"""
    WITH read AS (
        SELECT position, json_extract(text, {_MEMBERS}) AS found, json_type(text, {_MEMBERS}) AS kinds FROM "values"
    ),
    judged AS (
        SELECT position, found,
               coalesce(kinds[1] IN ('UBIGINT', 'BIGINT', 'NULL'), true)
                   AND coalesce(kinds[2] IN ('VARCHAR', 'NULL'), true)
                   AND coalesce(kinds[3] IN ('UBIGINT', 'DOUBLE', 'NULL'), true)
                   AND coalesce(kinds[4] IN ('ARRAY', 'NULL'), true) AS is_read,
               coalesce(kinds[1], 'NULL') <> 'NULL' AS is_keyed,
               coalesce(kinds[2], 'NULL') <> 'NULL' AND coalesce(kinds[4], 'NULL') <> 'NULL' AS is_mapped
        FROM read
    ),
    passed AS (
        SELECT position, row_number() OVER (PARTITION BY found[1] ORDER BY position) AS place
        FROM judged WHERE is_read AND is_keyed AND is_mapped
    )
    SELECT position,
           CASE WHEN NOT is_read THEN 'parse' WHEN NOT is_keyed THEN 'dedup' WHEN NOT is_mapped THEN 'transform'
                WHEN place > 1 THEN 'copy' END,
           found[2] ->> '$', (found[3] ->> '$')::DOUBLE, found[4]::VARCHAR
    FROM judged LEFT JOIN passed USING (position)
"""


def event(random: Random) -> bytes:
    choices: dict[str, Sequence[Any]] = {
        "id": (1, 2, 3, 4, 5, 6, 7, None, "7"),
        "city": ("Lyon", "München", "Lyon", None, 7),
        "price": (1.5, 2, None, "2"),
        "tags": ([], ["a", {"b": None}], None),
    }
    return json.dumps(
        {name: random.choice(values) for name, values in choices.items() if random.random() < 0.95}, separators=(",", ":")
    ).encode()


def frame(sequence: int, values: Sequence[bytes], arrival_us: int = 0) -> Arrived:
    headers = {HEADER_TOPIC: "orders", HEADER_PARTITION: "0"}
    message = Message("tf.p.raw.orders.0", sequence, datetime(2026, 1, 1, tzinfo=UTC), encode_frame(records(0, values)), headers)
    return Arrived(message, arrival_us)


@pytest.mark.parametrize("seed", range(5))
def test_the_steps_together_make_what_sql_makes_of_the_records(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    values = [[event(random) for _ in range(random.randrange(1, 60))] for _ in range(FRAMES)]
    found: dict[int, tuple[Any, ...]] = {}
    made = program(FIELDS, COLUMNS, first_of("id", HOUR_US), buckets=3)
    stores = [KeyedStore(Storage.local(tmp_path / str(bucket))) for bucket in range(3)]
    with open_engine() as engine:
        # Two ranges, so that the second one finds keys of the first in the store.
        for first, end in ((0, 2), (2, FRAMES)):
            passed = run(made, engine, [frame(sequence, values[sequence - 1]) for sequence in range(first + 1, end + 1)])
            found |= {at(dead_letter): (dead_letter["stage"], None, None, None) for dead_letter in passed.dead_letters.to_pylist()}
            for bucket, part in shares(passed.rows, key_owners(passed.rows, 3)):
                judged, _ = made.dedup.first_of_keys(part, stores[bucket], None)
                stores[bucket].open(stores[bucket].add(judged.entries, (first, end), -HOUR_US, has_turn=False))
                found |= {at(row): (None, row["place"], row["price"], row["tags"]) for row in judged.accepted.to_pylist()}
                found |= {at(row): ("copy", None, None, None) for row in judged.duplicates.to_pylist()}
    assert found == by_sql(values)


def at(row: dict[str, Any]) -> int:
    return int(row["_tf_sequence"]) << 20 | int(row["_tf_ordinal"])


def by_sql(values: Sequence[Sequence[bytes]]) -> dict[int, tuple[Any, ...]]:
    rows = [(sequence << 20 | ordinal, text.decode()) for sequence, texts in enumerate(values, 1) for ordinal, text in enumerate(texts)]
    with fresh_database() as oracle:
        oracle.register("values", pa.table({"position": [place for place, _ in rows], "text": [text for _, text in rows]}))
        reported = oracle.execute(ORACLE).fetchall()
    return {place: (ended, *((None,) * 3 if ended else row)) for place, ended, *row in reported}


def test_only_table_columns_and_the_key_cross_the_exchange() -> None:
    with open_engine() as engine:
        rows = run(program(FIELDS, COLUMNS, first_of("id", HOUR_US)), engine, [frame(1, [event(Random(1))])]).rows
    assert rows.column_names == ["place", "price", "tags", *POSITION_COLUMNS, "_tf_key_hi", "_tf_key_lo"]


def test_a_field_lives_until_the_last_step_that_reads_it() -> None:
    whole = program([*FIELDS, ("unread", "string")], COLUMNS, first_of("id", HOUR_US))
    path = [*whole.lane_paths[0], *whole.shared_path]
    assert [(step.name, sorted(done_with)) for step, done_with in path] == [("parse", ["unread"]), ("dedup", ["id"]), ("mapping", [])]


def test_a_step_behind_dedup_and_a_second_parse_are_refused() -> None:
    whole = program(FIELDS, COLUMNS, first_of("id", HOUR_US))
    parse_step, dedup, mapping = whole.steps
    for steps in ([parse_step, dedup, Dedup(("city",), 1), mapping], [parse_step, parse_step, mapping], [dedup, mapping], [parse_step]):
        with pytest.raises(ValueError, match=r"^(step dedup|the steps .* do not (begin|end))"):
            of_steps(steps)


class Loose(Step):
    """Drops a record for a reason that it does not name among its outcomes."""

    name, stage, outcomes = "loose", "loose", ()

    def encode(self) -> dict[str, Any]:
        return {"step": "loose"}

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        return StageOutput(rows.slice(1), empty_rejected(), {"dropped.loose": 1})


def test_a_drop_for_no_registered_reason_is_an_error() -> None:
    with open_engine() as engine, pytest.raises(TypeError, match=r"step 'loose' has dropped records as dropped\.loose"):
        run(program(FIELDS, COLUMNS, Loose()), engine, [frame(1, [event(Random(1))])])


def test_a_file_unfit_for_its_table_names_every_step_at_fault() -> None:
    columns = tuple(
        TableColumn(name, kind, "") for name, kind in (("order_id", "String"), ("city", "String"), ("price", "Nullable(Float64)"))
    )
    text = EXAMPLE.replace("sink:\n", "transforms:\n  - {type: dedup, config: {key: order_id, time_window: 1h}}\nsink:\n", 1)
    file = parse(text.replace("Nullable(Float64)", "Array(String)"), name="file", environment={})
    with pytest.raises(ConfigurationError, match=r"sink\.mapping: column 'price': float cannot become Array"):
        compile_program(file, [Table("db", "t", "MergeTree", "", columns, 0)])
