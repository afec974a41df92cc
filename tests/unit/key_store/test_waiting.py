"""Segments with payload, and the store of waiting records: every type comes back, all of a key are found, damage is noticed."""

import decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import StateDamagedError
from pipelines.key_store.index import Sought
from pipelines.key_store.payload import NO_ROW, from_stored, gather, stored_schema, to_stored
from pipelines.key_store.segment_file import BLOCK_ROWS
from pipelines.key_store.segments import Entries, Run, by_hash
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore
from pipelines.key_store.waiting import WaitingRun, WaitingStore

FIELDS = pa.schema(
    [
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("price", pa.float64()),
        ("exact", pa.decimal128(20, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("topic", pa.dictionary(pa.int32(), pa.string())),
    ]
)


def payload(numbers: np.ndarray) -> pa.RecordBatch:
    """Columns of every kind; each is null in some rows."""
    values = numbers.tolist()
    columns: dict[str, list[Any]] = {
        "text": [None if n % 7 == 0 else "t" * (n % 5) + str(n) for n in values],
        "bytes": [None if n % 11 == 0 else str(n).encode() for n in values],
        "flag": [None if n % 5 == 0 else n % 2 == 0 for n in values],
        "small": [None if n % 3 == 0 else n % 100 for n in values],
        "price": [n / 4 for n in values],
        "exact": [decimal.Decimal(n) / 4 for n in values],
        "at": values,
        "topic": ["one" if n % 2 else "two" for n in values],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in FIELDS]
    return to_stored(pa.table(arrays, schema=FIELDS), FIELDS)


def entries(count: int, keys: int, first: int = 0) -> Entries:
    """Entries in position order, with `keys` keys; the time is the number."""
    numbers = np.arange(first, first + count)
    hashes = np.random.default_rng(0).integers(0, 2**64, (2, keys), dtype=np.uint64)
    of = numbers * 7919 % keys
    return Entries(
        hashes[0][of], hashes[1][of], numbers, numbers.astype(np.uint64) + 1, np.full(count, 7, dtype=np.uint32), payload(numbers)
    )


def by_key(found: Entries) -> Entries:
    return found.take(by_hash(found.hi, found.lo))


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.local(tmp_path)


@pytest.mark.parametrize("count", [1, 7, 8, 1000, BLOCK_ROWS, BLOCK_ROWS + 9])
def test_a_payload_comes_back_from_the_file(storage: Storage, count: int) -> None:
    held = by_key(entries(count, count))
    written = Run.write(storage, "run", held, FIELDS)
    run = Run.open(storage, written.facts, fields=FIELDS)
    rows = np.arange(0, count, 3)
    assert run.payload_rows(rows) == held.take(rows).payload
    assert run.checked_entries().payload == held.payload
    assert [column.type for column in from_stored(run.payload_rows(rows), FIELDS)] == FIELDS.types


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.null()])
def test_a_type_that_cannot_be_stored_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match="cannot be stored beside a key"):
        stored_schema(pa.schema([("nested", kind)]))


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_flipped_bit_anywhere_is_noticed_or_harmless(data: st.DataObject) -> None:
    with TemporaryDirectory() as directory:
        storage, held = Storage.local(Path(directory)), entries(50, 20)
        facts = WaitingRun.write(storage, "0-1.1.a", held, FIELDS).facts
        path = Path(directory) / "0-1.1.a"
        content = bytearray(path.read_bytes())
        bit = data.draw(st.integers(0, 8 * len(content) - 1))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            found = WaitingRun.open(storage, facts, fields=FIELDS).checked_entries()
        except StateDamagedError:
            return
        assert found.payload == held.payload
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(held.columns(), found.columns(), strict=True))


@pytest.mark.parametrize("row", [0, BLOCK_ROWS - 1, BLOCK_ROWS])
def test_a_damaged_payload_is_noticed_by_the_block(storage: Storage, row: int) -> None:
    held = entries(BLOCK_ROWS + 9, BLOCK_ROWS)
    facts = WaitingRun.write(storage, "0-1.1.a", held, FIELDS).facts
    path = Path(storage.path) / "0-1.1.a"
    content = bytearray(path.read_bytes())
    prices = np.arange(BLOCK_ROWS + 9) / 4
    content[content.index(prices.tobytes()) + 8 * row] ^= 1
    path.write_bytes(content)
    run = WaitingRun.open(storage, facts, fields=FIELDS)
    other = BLOCK_ROWS if row < BLOCK_ROWS else 0
    assert run.payload_rows(np.array([other])) == held.take(np.array([other])).payload
    with pytest.raises(StateDamagedError, match=r"rows \d+ to \d+ are damaged; nothing was written"):
        run.payload_rows(np.array([row]))


@pytest.mark.parametrize(("count", "keys"), [(1, 1), (3000, 1), (3000, 7), (3000, 3000), (100_000, 300)])
def test_all_records_of_a_key_are_found_in_order(storage: Storage, count: int, keys: int) -> None:
    held = entries(count, keys)
    run = WaitingRun.open(storage, WaitingRun.write(storage, "0-1.1.a", held, FIELDS).facts, fields=FIELDS)
    asked = held.take(np.arange(min(keys, 20)))
    others = np.random.default_rng(1).integers(0, 2**64, (2, 500), dtype=np.uint64)
    at, rows = run.find(Sought.of(asked.hi, asked.lo))
    for number in range(len(asked)):
        assert rows[at == number].tolist() == np.flatnonzero(held.hi == asked.hi[number]).tolist()
    assert len(run.find(Sought.of(others[0], others[1]))[0]) == 0
    assert len(run.find(Sought.of(asked.hi, others[1][: len(asked)]))[0]) == 0


@pytest.mark.parametrize(("after", "to", "expected"), [(-5, -1, 0), (-5, 0, 1), (0, 3, 3), (3, 3, 0), (95, 200, 4), (99, 200, 0)])
def test_the_times_between_two_are_a_slice(storage: Storage, after: int, to: int, expected: int) -> None:
    run = WaitingRun.open(storage, WaitingRun.write(storage, "0-1.1.a", entries(100, 9), FIELDS).facts, fields=FIELDS)
    found = run.entries.time[run.between(after, to)]
    assert found.tolist() == [time for time in range(100) if after < time <= to]
    assert len(found) == expected


def test_a_damaged_time_is_noticed_wherever_a_search_ends(storage: Storage) -> None:
    held = entries(3 * BLOCK_ROWS, 50)
    facts = WaitingRun.write(storage, "0-1.1.a", held, FIELDS).facts
    path = Path(storage.path) / "0-1.1.a"
    content = bytearray(path.read_bytes())
    middle = 3 * BLOCK_ROWS // 2
    content[content.index(held.time.tobytes()) + 8 * middle + 6] ^= 1
    path.write_bytes(content)
    with pytest.raises(StateDamagedError, match="are damaged"):
        WaitingRun.open(storage, facts, fields=FIELDS).between(2 * BLOCK_ROWS + 5, 2 * BLOCK_ROWS + 9)


def test_rows_of_several_sources_are_gathered_once_each() -> None:
    sources = [payload(np.arange(0, 10)), payload(np.arange(10, 20))]
    read: list[list[int]] = [[], []]

    def taker(number: int) -> Any:
        def take(rows: np.ndarray) -> pa.RecordBatch:
            read[number] += rows.tolist()
            return sources[number].take(pa.array(rows))

        return take

    source, row = np.array([1, 0, NO_ROW, 1, 0]), np.array([3, 2, 5, 3, 9])
    found = gather([taker(0), taker(1)], source, row, stored_schema(FIELDS))
    rows = found.rows(slice(0, 5))
    assert rows.column("at").cast(pa.int64()).to_pylist() == [13, 2, None, 13, 9]
    assert rows.column("text").to_pylist() == ["ttt13", "tt2", None, "ttt13", "tttt9"]
    assert read == [[2, 9], [3]]
    assert found.row_bytes().tolist()[2] == 0


def test_a_merge_takes_the_payload_of_the_newest_entry(storage: Storage) -> None:
    store = KeyedStore(storage, FIELDS)
    for start in (0, 500, 1000):
        store.open(store.add(by_key(entries(1000, 1000, first=start)), (start, start + 1), -1, has_turn=True))
    store.open(store.compact(expired=-1, made_for=9))
    (held,) = store.checked()
    assert held.payload == payload(held.time)
    assert sorted(held.time.tolist()) == list(range(1000, 2000))


def test_a_merge_appends_what_waits_and_leaves_out_the_rest(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.key_store.store.SMALL_FAN", 3)
    store = WaitingStore(storage, FIELDS, lambda found: found.time % 10 == 3)
    for start in range(0, 300, 100):
        store.open(store.add(entries(100, 9, first=start), (start, start + 100), 49, has_turn=True))
    (held,) = store.checked()
    assert held.time.tolist() == [time for time in range(50, 300) if time % 10 != 3]
    assert held.payload == payload(held.time)
