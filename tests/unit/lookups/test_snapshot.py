"""A snapshot of a look-up table: which row a key finds, and which tables are refused because they could answer in two ways."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import fresh_database

from pipelines.key_store.payload import NO_ROW
from pipelines.lookups.snapshot import Snapshot, snapshot_of
from pipelines.lookups.spec import Column, Range, TableSpec
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

NAME = Column("name", "string")
BY_CODE = TableSpec((Column("code", "string"),), None, (NAME,))
BY_ADDRESS = TableSpec((), Range("first", "last", "int64"), (NAME,))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine() as opened:
        yield opened


def made(engine: Engine, spec: TableSpec, **columns: Any) -> Snapshot:
    return Snapshot(spec, snapshot_of(spec, pa.table(columns), engine))


def found(engine: Engine, snapshot: Snapshot, key: list[Any], at: Any = None, column: str = "name") -> list[Any]:
    columns = [pa.chunked_array([one if isinstance(one, pa.Array) else pa.array(one)]) for one in key]
    within = None if at is None else pa.chunked_array([at if isinstance(at, pa.Array) else pa.array(at)])
    return list(snapshot.take(column, snapshot.find(engine, columns, within)).to_pylist())


def refused(engine: Engine, spec: TableSpec, **columns: Any) -> str:
    with pytest.raises(ValueError, match=r".") as raised:
        snapshot_of(spec, pa.table(columns), engine)
    return str(raised.value)


def test_a_key_finds_its_row_and_a_null_none(engine: Engine) -> None:
    snapshot = made(engine, BY_CODE, code=["DE", "FR", None], name=["Germany", None, "nowhere"])
    assert snapshot.rows.num_rows == 2
    assert found(engine, snapshot, [["FR", "DE", None, "de", "", "DE"]]) == [None, "Germany", None, None, None, "Germany"]
    rows = snapshot.find(engine, [pa.chunked_array([pa.array(["FR", None, "IT"])])], None)
    assert (rows == NO_ROW).tolist() == [False, True, True]


def test_an_empty_table_answers_nothing(engine: Engine) -> None:
    snapshot = made(engine, BY_CODE, code=pa.array([], pa.string()), name=pa.array([], pa.string()))
    assert found(engine, snapshot, [["DE", None]]) == [None, None]
    ranges = made(engine, BY_ADDRESS, first=pa.array([], pa.int64()), last=pa.array([], pa.int64()), name=pa.array([], pa.string()))
    assert found(engine, ranges, [], [5, None]) == [None, None]


@pytest.mark.parametrize(
    "codes",
    [
        pa.array(["DE", "FR"]).dictionary_encode(),
        pa.array(["DE", "FR"], pa.large_string()),
        pa.array([b"DE", b"FR"], pa.binary(2)),
        pa.array([b"DE\0\0", b"FR\0\0"], pa.binary(4)),
        pa.array([b"DE", b"FR"], pa.binary()),
        pa.array(["DE", "FR"], pa.string_view()),
    ],
    ids=["LowCardinality", "large", "FixedString(2)", "FixedString(4)", "binary", "view"],
)
def test_texts_of_every_kind_are_keys_of_a_text(engine: Engine, codes: pa.Array) -> None:
    assert found(engine, made(engine, BY_CODE, code=codes, name=["Germany", "France"]), [["FR", "DE"]]) == ["France", "Germany"]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.decimal128(20, 0)], ids=str)
def test_integers_are_equal_whatever_their_width(engine: Engine, kind: pa.DataType) -> None:
    spec = TableSpec((Column("id", "int64"),), None, (NAME,))
    snapshot = made(engine, spec, id=pa.array([1, 100], pa.int64()).cast(kind), name=["one", "hundred"])
    for of_record in (pa.int8(), pa.int32(), pa.int64()):
        assert found(engine, snapshot, [pa.array([100, 1, 7], of_record)]) == ["hundred", "one", None]


def test_a_composite_key_keeps_its_parts_apart(engine: Engine) -> None:
    spec = TableSpec((Column("a", "string"), Column("b", "int64")), None, (NAME,))
    snapshot = made(engine, spec, a=["x", "x", "x1"], b=[1, 11, 1], name=["first", "second", "third"])
    assert found(engine, snapshot, [["x", "x1", "x", "x"], [11, 1, None, 2]]) == ["second", "third", None, None]


def test_columns_are_read_as_their_types(engine: Engine) -> None:
    columns = (Column("at", "timestamp"), Column("on", "bool"), Column("share", "float64"), Column("size", "int16"))
    spec = TableSpec((Column("code", "string"),), None, columns)
    snapshot = made(engine, spec, code=["a", "b"], at=["2026-01-31T12:00:00Z", "2026-01-31 12:00:00"], on=[1, 0], share=[1, 2], size=[7, 8])
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert found(engine, snapshot, [["a", "b"]], column="at") == [noon, noon]
    assert found(engine, snapshot, [["a", "b"]], column="on") == [True, False]
    assert found(engine, snapshot, [["a", "b"]], column="share") == [1.0, 2.0]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("int8", [1, 300], "column 'v' is int64 and cannot be read as int8"),
        ("int64", ["7", "x"], "cannot be read as int64"),
        ("float64", [1.0, float("nan")], "column 'v' holds a number that is infinite or NaN"),
        ("bool", [0, 2], "a number is neither 0 nor 1"),
        ("timestamp", [1, 2], "give an instant, in ClickHouse for example toDateTime64"),
        ("string", [b"a", b"\xff"], "cannot be read as string"),
    ],
)
def test_a_value_that_does_not_fit_refuses_the_snapshot(engine: Engine, kind: str, values: list[Any], message: str) -> None:
    assert message in refused(engine, TableSpec(BY_CODE.key, None, (Column("v", kind),)), code=["a", "b"], v=values)


def test_a_key_that_is_there_twice_refuses_the_snapshot(engine: Engine) -> None:
    assert refused(engine, BY_CODE, code=["a", "b", "a"], name=["1", "2", "3"]) == "1 row repeats a key: ('a')"
    many = [str(number) for number in range(20)] * 2
    assert refused(engine, BY_CODE, code=many, name=many).startswith("20 rows repeat a key: (")
    assert refused(engine, BY_CODE, code=many, name=many).endswith(", ...")


def test_a_column_that_is_missing_is_named(engine: Engine) -> None:
    assert refused(engine, BY_CODE, code=["a"], title=["x"]) == "there is no column 'name'; there are code, title"


def test_ranges_hold_both_ends_and_may_be_open(engine: Engine) -> None:
    snapshot = made(engine, BY_ADDRESS, first=[None, 10, 20, 40], last=[5, 19, 30, None], name=["low", "a", "b", "high"])
    asked = [-(2**63), 5, 6, 10, 19, 20, 30, 31, 39, 40, 2**63 - 1, None]
    assert found(engine, snapshot, [], asked) == ["low", "low", None, "a", "a", "b", "b", None, None, "high", "high", None]


def test_a_range_without_its_end_ends_before_the_next(engine: Engine) -> None:
    spec = TableSpec((Column("id", "string"),), Range("since", "until", "timestamp", includes_end=False), (NAME,))
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    until = [days[1], None, days[3]]
    snapshot = made(engine, spec, id=["p", "p", "q"], since=[days[0], days[1], days[0]], until=until, name=["x", "y", "z"])
    asked = pa.array([days[0], days[1], days[3], days[2], days[3]], pa.timestamp("us", "UTC"))
    assert found(engine, snapshot, [["p", "p", "p", "q", "q"]], asked) == ["x", "y", "y", "z", None]


@pytest.mark.parametrize(
    ("first", "last", "includes_end", "message"),
    [
        ([1, 5], [5, 9], True, "1 range overlaps the one before: (5, 9); both ends belong to a range, unless `includes_end` is false"),
        ([1, 5], [6, 9], False, "1 range overlaps the one before: (5, 9)"),
        ([1, 5], [None, 9], True, "1 range overlaps the one before: (5, 9)"),
        ([5], [4], True, "1 range ends before beginning: (5, 4)"),
        ([5], [5], False, "1 range ends before beginning: (5, 5)"),
        ([None, None], [3, 5], True, "1 range overlaps the one before: (open, "),
    ],
)
def test_ranges_that_could_answer_twice_are_refused(
    engine: Engine, first: list[Any], last: list[Any], includes_end: bool, message: str
) -> None:
    spec = TableSpec((), Range("first", "last", "int64", includes_end), ())
    assert message in refused(engine, spec, first=pa.array(first, pa.int64()), last=pa.array(last, pa.int64()))


def test_ranges_of_unsigned_numbers_reach_their_end(engine: Engine) -> None:
    spec = TableSpec((), Range("first", "last", "uint64"), (NAME,))
    top = 2**64 - 1
    snapshot = made(engine, spec, first=pa.array([0, 2**63], pa.uint64()), last=pa.array([9, None], pa.uint64()), name=["low", "high"])
    assert found(engine, snapshot, [], pa.array([0, 9, 10, top, 2**63], pa.uint64())) == ["low", "low", None, "high", "high"]


@pytest.mark.parametrize("includes_end", [True, False])
@pytest.mark.parametrize("keys", [0, 1, 2])
def test_many_ranges_are_searched_in_blocks(engine: Engine, keys: int, includes_end: bool) -> None:
    """More than the cache holds; the last range, which is open, has the largest number, too."""
    count = 40_003
    first = np.arange(count, dtype=np.int64) * 10
    last: list[int | None] = [*(first[:-1] + 6).tolist(), None]
    spec = TableSpec((Column("k", "string"),) if keys else (), Range("first", "last", "int64", includes_end), (NAME,))
    names = [str(number) for number in range(count)]
    rows = [
        pa.table({"k": [key] * count, "first": first, "last": last, "name": [key + name for name in names]}) for key in "ab"[: keys or 1]
    ]
    snapshot = Snapshot(spec, snapshot_of(spec, pa.concat_tables(rows), engine))
    asked = np.append(np.random.default_rng(1).integers(-20, count * 10, 5000), [-(2**63), -1, 0, 2**63 - 1])
    for key in "ab"[: keys or 1]:
        end = 6 if includes_end else 5
        expected = [
            f"{key}{min(at // 10, count - 1)}" if at >= 0 and (at % 10 <= end or at >= first[-1]) else None for at in asked.tolist()
        ]
        assert found(engine, snapshot, [[key] * len(asked)] if keys else [], pa.array(asked)) == expected


KEYS = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "", "ab"]))


@given(data=st.data(), count=st.integers(0, 12), asked=st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(-3, 40))), max_size=30))
def test_ranges_of_keys_answer_as_sql_does(engine: Engine, data: st.DataObject, count: int, asked: list[tuple[Any, Any]]) -> None:
    """DuckDB compares every record with every range."""
    includes_end = data.draw(st.booleans())
    rows = []
    for key in ("a", "b", None, "ab"):
        ends = sorted(data.draw(st.sets(st.integers(-2, 38), max_size=count)))
        rows += [(key, first, last, f"{key}{first}") for first, last in zip(ends[::2], ends[1::2], strict=False)]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.string())
    table = pa.table([pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], names=["k", "first", "last", "name"])
    spec = TableSpec((Column("k", "string"),), Range("first", "last", "int64", includes_end), (NAME,))
    records = pa.table({"k": pa.array([k for k, _ in asked], pa.string()), "v": pa.array([v for _, v in asked], pa.int64())})
    given = Snapshot(spec, snapshot_of(spec, table, engine))
    answer = found(engine, given, [records["k"].combine_chunks()], records["v"].combine_chunks())
    with fresh_database() as oracle:
        oracle.register("records", records.append_column("n", pa.array(np.arange(len(asked)))))
        oracle.register("ranges", table)
        bound = "<=" if includes_end else "<"
        sql = f"""SELECT name FROM records LEFT JOIN ranges
            ON records.k = ranges.k AND records.v >= ranges.first AND records.v {bound} ranges.last ORDER BY n"""
        assert answer == [name for (name,) in oracle.execute(sql).fetchall()]


def test_two_reads_of_a_table_unite_their_columns() -> None:
    other = TableSpec(BY_CODE.key, None, (Column("area", "int64"),))
    assert BY_CODE.united(other).columns == (Column("area", "int64"), NAME)
    assert BY_CODE.united(other).shape == other.united(BY_CODE).shape != BY_CODE.shape
    with pytest.raises(ValueError, match="its column 'name' is read as string here and as int64 in another look-up"):
        BY_CODE.united(TableSpec(BY_CODE.key, None, (Column("name", "int64"),)))
    with pytest.raises(ValueError, match="its key is read as string here and as int64 in another"):
        BY_CODE.united(TableSpec((Column("code", "int64"),), None, (NAME,)))
