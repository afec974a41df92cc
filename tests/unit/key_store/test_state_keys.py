"""Key hashes: the same for ever, and different for different keys."""

import hashlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.key_store.keys import hash_keys
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_engine()


def number(engine: Engine, *columns: pa.Array) -> list[int]:
    found = hash_keys(engine, columns)
    return [(int(hi) << 64) | int(lo) for hi, lo in zip(found.hi, found.lo, strict=True)]


VECTORS = [
    (pa.array(["hello"]), "s5:hello"),
    (pa.array([""]), "s0:"),
    (pa.array(["Kraków"]), "s7:Kraków"),
    (pa.array([1], pa.int32()), "i1:1"),
    (pa.array([-42], pa.int64()), "i3:-42"),
    (pa.array([2**64 - 1], pa.uint64()), "i20:18446744073709551615"),
    (pa.array([1.5]), "f19:4609434218613702656"),
    (pa.array([True]), "b1:1"),
    (pa.array([b"\x00\xff"]), "x2:\x00\xff"),
]


@pytest.mark.parametrize(("column", "written"), VECTORS, ids=[written for _, written in VECTORS])
def test_a_key_is_the_md5_of_its_written_form(engine: Engine, column: pa.Array, written: str) -> None:
    encoded = written.encode("latin-1") if written.startswith("x") else written.encode()
    assert number(engine, column) == [int.from_bytes(hashlib.md5(encoded).digest(), "little")]


def test_fixed_vectors(engine: Engine) -> None:
    assert number(engine, pa.array(["order-1", "order-2"])) == [0xD02477C854FCC9E1DA20D5C147935A4B, 0xCEF0AB358256B8B83B9CC79836BFA696]
    assert number(engine, pa.array(["order-1"]), pa.array([7])) == [0x11630B06B9E4FD07938C6B1F542F56EC]


def test_the_width_of_a_number_does_not_matter_but_its_kind_does(engine: Engine) -> None:
    one = number(engine, pa.array([1], pa.int8()))
    assert one == number(engine, pa.array([1], pa.uint64())) == number(engine, pa.array([1], pa.int32()))
    different = [one, number(engine, pa.array(["1"])), number(engine, pa.array([1.0])), number(engine, pa.array([True]))]
    assert len({str(key) for key in different}) == 4


def test_minus_zero_is_zero_and_single_precision_is_its_double(engine: Engine) -> None:
    assert number(engine, pa.array([-0.0])) == number(engine, pa.array([0.0]))
    assert number(engine, pa.array([1.5], pa.float32())) == number(engine, pa.array([1.5], pa.float64()))


def test_the_border_between_fields_is_part_of_a_composite_key(engine: Engine) -> None:
    left, right = pa.array(["ab", "a", "abc", ""]), pa.array(["c", "bc", "", "abc"])
    assert len(set(number(engine, left, right))) == 4


def test_a_null_in_any_field_is_marked(engine: Engine) -> None:
    found = hash_keys(engine, [pa.array(["a", None, "c", None]), pa.array([1, 2, None, None])])
    assert found.is_null.tolist() == [False, True, True, True]


def test_no_rows_are_no_hashes(engine: Engine) -> None:
    found = hash_keys(engine, [pa.array([], pa.string())])
    assert (len(found.hi), len(found.lo), len(found.is_null)) == (0, 0, 0)


def test_a_list_cannot_be_a_key(engine: Engine) -> None:
    with pytest.raises(TypeError, match=r"a column of type list<.*> cannot be a key"):
        hash_keys(engine, [pa.array([[1]])])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.text(max_size=20), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=50))
def test_equal_keys_and_only_those_have_equal_hashes(keys: list[tuple[str, int]]) -> None:
    engine = open_engine()
    texts, numbers = zip(*keys, strict=True)
    found = number(engine, pa.array(texts, pa.string()), pa.array(numbers, pa.int64()))
    assert len(set(found)) == len(set(keys))
    assert dict(zip(keys, found, strict=True)) == dict(reversed(list(zip(keys, found, strict=True))))
    engine.close()


@settings(max_examples=50, deadline=None)
@given(keys=st.lists(st.tuples(st.none() | st.text(max_size=30), st.none() | st.integers(-(2**63), 2**63 - 1)), max_size=40))
def test_few_keys_have_the_hashes_that_many_have(keys: list[tuple[str | None, int | None]]) -> None:
    columns = [pa.array([text for text, _ in keys], pa.string()), pa.array([integer for _, integer in keys], pa.int64())]
    many = [pa.concat_arrays([column, pa.nulls(600, column.type)]) for column in columns]
    with open_engine() as engine:
        assert number(engine, *columns) == number(engine, *many)[: len(keys)]
