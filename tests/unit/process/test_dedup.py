"""dedup: one record per key and window, the same for every way of cutting the stream into batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import fresh_database, stage_engine

from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore
from pipelines.process.dedup import dedup, with_keys, with_times
from pipelines.process.watermarks import TIME_COLUMN
from pipelines.protocol.records import POSITION_FIELDS
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

FOREVER = 2**60
POSITION_SCHEMA = pa.schema(POSITION_FIELDS)
NOTHING = -1
"""Nothing has expired."""


@dataclass(frozen=True)
class Record:
    key: str | None
    time: int


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    opened = open_engine()
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path: Path) -> KeyedStore:
    return KeyedStore(Storage.local(tmp_path))


def table(records: list[Record], first: int) -> pa.Table:
    """One raw frame per record: sequence `first`, `first` + 1, ..."""
    count = len(records)
    return pa.table(
        {
            "id": pa.array([record.key for record in records], pa.string()),
            "_tf_sequence": pa.array(np.arange(first, first + count, dtype=np.uint64)),
            "_tf_ordinal": pa.array(np.zeros(count, dtype=np.uint32)),
        }
    )


def run(
    engine: Engine,
    store: KeyedStore,
    records: list[Record],
    window: int,
    cuts: tuple[int, ...] = (),
    watermarks: list[int] | None = None,
) -> list[int]:
    """Sequences of the records that go on, run batch by batch, cut before `cuts`; what is over by each batch's end expires."""
    accepted: list[int] = []
    borders = [0, *sorted({cut for cut in cuts if 0 < cut < len(records)}), len(records)]
    expired = NOTHING
    for begin, end in pairwise(borders):
        batch = records[begin:end]
        if not batch:
            continue
        keyed = with_keys(engine, table(batch, begin), ["id"]).accepted
        rows = keyed.column("_tf_sequence").to_numpy().astype(np.int64)
        times = np.array([records[row].time for row in rows], dtype=np.int64)
        marks = None if watermarks is None else np.array([watermarks[row] for row in rows], dtype=np.int64)
        found = dedup(keyed, times, window, store.find, marks)
        assert found.accepted.num_rows + found.duplicates.num_rows == keyed.num_rows
        accepted += found.accepted.column("_tf_sequence").to_pylist()
        store.open(store.add(found.entries, (begin, end), expired, has_turn=end % 2 == 0))
        clock = records[end - 1].time if watermarks is None else watermarks[end - 1]
        expired = clock - window
    return accepted


def model(records: list[Record], window: int, watermarks: list[int] | None = None) -> list[int]:
    """The same, one record after the other with a dictionary."""
    seen: dict[str, int] = {}
    accepted = []
    for number, record in enumerate(records):
        if record.key is None:
            continue
        last = seen.get(record.key)
        over = watermarks is not None and last is not None and last + window <= watermarks[number]
        if last is not None and abs(record.time - last) < window and not over:
            continue
        seen[record.key] = record.time
        accepted.append(number)
    return accepted


def of(*pairs: tuple[str | None, int]) -> list[Record]:
    return [Record(key, time) for key, time in pairs]


# -- meaning ----------------------------------------------------------------------------------------------------------------------


def test_the_first_record_of_a_key_goes_on_and_its_copies_do_not(engine: Engine, store: KeyedStore) -> None:
    assert run(engine, store, of(("a", 0), ("b", 0), ("a", 1), ("c", 2), ("b", 3)), FOREVER) == [0, 1, 3]


def test_copies_in_one_batch_and_in_later_ones_are_dropped_alike(engine: Engine, store: KeyedStore) -> None:
    assert run(engine, store, of(("a", 0), ("a", 1), ("a", 2), ("a", 3)), FOREVER, cuts=(2,)) == [0]


@pytest.mark.parametrize("cuts", [(), (1,)], ids=["in one batch", "over two batches"])
@pytest.mark.parametrize(("later", "accepted"), [(9, [0]), (10, [0, 1]), (11, [0, 1])])
def test_a_copy_at_exactly_the_window_starts_a_new_one(
    engine: Engine, store: KeyedStore, cuts: tuple[int, ...], later: int, accepted: list[int]
) -> None:
    assert run(engine, store, of(("a", 0), ("a", later)), 10, cuts) == accepted


def test_a_dropped_copy_does_not_prolong_the_window(engine: Engine, store: KeyedStore) -> None:
    assert run(engine, store, of(("a", 0), ("a", 6), ("a", 12), ("a", 18), ("a", 24)), 10) == [0, 2, 4]


def test_one_batch_may_span_many_windows(engine: Engine, store: KeyedStore) -> None:
    records = of(*(("a", time) for time in range(0, 1000, 3)), *(("b", 1000) for _ in range(3)))
    assert run(engine, store, records, 10) == model(records, 10)


def test_a_key_with_more_windows_than_passes_in_one_batch(engine: Engine, store: KeyedStore) -> None:
    records = of(*(pair for time in range(0, 2000, 4) for pair in (("a", time), (f"k{time % 8}", time), ("a", time + 1))))
    assert run(engine, store, records, 4) == model(records, 4)


def test_a_null_key_is_rejected(engine: Engine) -> None:
    found = with_keys(engine, table(of(("a", 0), (None, 0), ("", 0)), 5), ["id"])
    assert found.accepted.column("_tf_sequence").to_pylist() == [5, 7]
    assert [(r["_tf_sequence"], r["stage"], r["code"], r["field"]) for r in found.rejected.to_pylist()] == [(6, "dedup", "null_key", "id")]


def test_records_keep_their_columns_and_lose_the_hashes(engine: Engine, store: KeyedStore) -> None:
    records = table(of(("a", 0), ("b", 0), ("a", 0)), 1)
    found = dedup(with_keys(engine, records, ["id"]).accepted, np.zeros(3, dtype=np.int64), 10, store.find)
    assert found.accepted.equals(records.take([0, 1]))
    assert found.duplicates.equals(records.take([2]))
    assert len(found.entries) == 2


def test_an_empty_batch_is_an_empty_answer(engine: Engine, store: KeyedStore) -> None:
    found = dedup(with_keys(engine, table([], 1), ["id"]).accepted, np.zeros(0, dtype=np.int64), 10, store.find)
    assert (found.accepted.num_rows, found.duplicates.num_rows, len(found.entries)) == (0, 0, 0)


def test_a_field_as_the_time_may_step_back(engine: Engine, store: KeyedStore) -> None:
    records = of(("a", 100), ("a", 91), ("a", 90), ("a", 99), ("a", 101))
    assert run(engine, store, records, 10, watermarks=[0] * 5) == [0, 2, 4] == model(records, 10, [0] * 5)


@pytest.mark.parametrize(("watermark", "accepted"), [(109, [0, 1]), (110, [0, 1, 2])])
def test_an_accepted_record_past_the_watermark_drops_nothing(
    engine: Engine, store: KeyedStore, watermark: int, accepted: list[int]
) -> None:
    assert run(engine, store, of(("a", 100), ("b", 200), ("a", 105)), 10, watermarks=[0, 0, watermark]) == accepted


# -- laws -------------------------------------------------------------------------------------------------------------------------

keys = st.sampled_from(["a", "b", "c", None])
steps = st.tuples(keys, st.integers(0, 7))
cutting = st.lists(st.integers(0, 60), max_size=6).map(tuple)


@settings(deadline=None, max_examples=120)
@given(st.lists(steps, max_size=60), st.integers(1, 20), cutting)
def test_dedup_agrees_with_a_dictionary_however_it_is_cut(found: list[tuple[str | None, int]], window: int, cuts: tuple[int, ...]) -> None:
    time, records = 0, []
    for key, step in found:
        time += step
        records.append(Record(key, time))
    with TemporaryDirectory() as directory:
        assert run(_ENGINE, KeyedStore(Storage.local(Path(directory))), records, window, cuts) == model(records, window)


@settings(deadline=None, max_examples=120)
@given(st.lists(st.tuples(keys, st.integers(0, 40)), max_size=60), st.integers(1, 20), st.integers(0, 10), cutting)
def test_dedup_by_event_time_agrees_with_a_dictionary(
    found: list[tuple[str | None, int]], window: int, lateness: int, cuts: tuple[int, ...]
) -> None:
    highest = 0
    records, watermarks = [], []
    for key, time in found:
        if time < highest - lateness:
            continue
        records.append(Record(key, time))
        watermarks.append(highest - lateness)
        highest = max(highest, time)
    with TemporaryDirectory() as directory:
        store = KeyedStore(Storage.local(Path(directory)))
        assert run(_ENGINE, store, records, window, cuts, watermarks) == model(records, window, watermarks)


ORACLE = """
WITH RECURSIVE chain AS (
    SELECT min(n) AS n FROM records WHERE key IS NOT NULL GROUP BY key
    UNION ALL
    SELECT (SELECT min(later.n) FROM records AS later WHERE later.key = last.key AND later.n > last.n AND later.time >= last.time + $window)
    FROM chain JOIN records AS last ON last.n = chain.n
)
SELECT n FROM chain WHERE n IS NOT NULL ORDER BY n
"""


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 400), cutting)
def test_the_answer_is_that_of_duckdb_over_the_same_records(seed: int, window: int, cuts: tuple[int, ...]) -> None:
    random = np.random.default_rng(seed)
    times = np.cumsum(random.integers(0, 5, 300))
    records = [Record(f"k{key}", int(time)) for key, time in zip(random.integers(0, 30, 300), times, strict=True)]
    rows = pa.table({"n": range(300), "key": [r.key for r in records], "time": [r.time for r in records]})
    with fresh_database() as oracle, TemporaryDirectory() as directory:
        oracle.register("records", rows)
        expected = [n for (n,) in oracle.execute(ORACLE, {"window": window}).fetchall()]
        assert run(_ENGINE, KeyedStore(Storage.local(Path(directory))), records, window, tuple(5 * cut for cut in cuts)) == expected


_ENGINE = stage_engine()


ARRIVAL = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR = 3_600_000_000


def at_positions(column: pa.Array) -> pa.Table:
    """A column `at` in records of raw positions."""
    columns = dict.fromkeys(POSITION_SCHEMA.names) | {"_tf_arrival": ARRIVAL}
    rows = [{**columns, "_tf_ordinal": number} for number in range(len(column))]
    return pa.Table.from_pylist(rows, schema=POSITION_SCHEMA).append_column("at", column)


# -- the time of a field --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "times"),
    [
        (pa.array(["2026-03-01T12:30:00.250Z", "2026-03-01 12:30:00"]), [1_772_368_200_250_000, 1_772_368_200_000_000]),
        (pa.array([1_772_368_200, 0]), [1_772_368_200_000_000, 0]),
        (pa.array([1.5, -1.0]), [1_500_000, -1_000_000]),
    ],
)
def test_times_are_texts_or_unix_seconds(engine: Engine, column: pa.Array, times: list[int]) -> None:
    found = with_times(engine, at_positions(column), "at", HOUR)
    assert found.accepted.column(TIME_COLUMN).to_pylist() == times
    assert found.rejected.num_rows == 0


@pytest.mark.parametrize(
    ("column", "codes"),
    [
        (pa.array([None, "2026-02-30T00:00:00Z", "soon", "1800-01-01T00:00:00Z"]), ["null_time", *["invalid_time"] * 3]),
        (pa.array([None, 10**15]), ["null_time", "invalid_time"]),
    ],
)
def test_what_is_no_time_is_rejected(engine: Engine, column: pa.Array, codes: list[str]) -> None:
    found = with_times(engine, at_positions(column), "at", HOUR)
    assert [(row["stage"], row["code"], row["field"]) for row in found.rejected.to_pylist()] == [("dedup", code, "at") for code in codes]
    assert found.accepted.num_rows == 0


def test_a_time_too_far_ahead_of_its_arrival_is_rejected(engine: Engine) -> None:
    column = pa.array(["2026-03-01T13:00:00Z", "2026-03-01T13:00:00.000001Z", "2099-01-01T00:00:00Z", None])
    found = with_times(engine, at_positions(column), "at", HOUR)
    assert [(row["_tf_ordinal"], row["code"]) for row in found.rejected.to_pylist()] == [(1, "ahead"), (2, "ahead"), (3, "null_time")]
