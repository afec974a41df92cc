"""The native reader against the reader without it: rows, reasons and messages are the same, whatever the bytes."""

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import stage_engine
from support.native import build_library, without_library

from pipelines.native_library import JSON_READER, NativeLibrary
from pipelines.process.rejections import Rejections
from pipelines.process.steps.parse.json_reader import JsonReader
from pipelines.process.steps.parse.native_reader import native_reader
from pipelines.types.fields import JSON_TYPES, ParsedField

_ENGINE = stage_engine()
_MUTATIONS = int(os.environ.get("TALLYFLOW_JSON_MUTATIONS", "4000"))
KEYS = ["a", "b", "A", "c", "d.e", "d.e.f", "d", "é", "zz"]
FIELDS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(sorted(JSON_TYPES))), min_size=1, max_size=5, unique_by=lambda pair: pair[0]
)
WIDE = [(kind, kind) for kind in sorted(JSON_TYPES)] + [("u", "object"), ("u.id", "int64"), ("u.x.y", "string"), ("t", "decimal")]
PIECES = (
    *('"', "\\", "{", "}", "[", "]", ",", ":", " ", "\n", "\t", "-", "+", "0", "00", "1", ".", "e", "E5", "null", "true", "false", "nul"),
    *("NaN", "Infinity", "\\u0000", "\\u00e9", "\\ud83d\\ude00", "\\ud800", "\\udc00", "\\u002F", "\\/", "\\b", "\\x", "\\u12", "\x00"),
    *("\x1f", "\x7f", "é", "😀", "\ufeff", "1e400", "1e-400", "-0", "-0.0", "1.50", "0.0000001", "0.1e1", "9223372036854775808", "[[]]"),
    *("18446744073709551615", "18446744073709551616", "1.7976931348623157e308", "16777217", "0.30000000000000004", '"a":1', "/**/", "'"),
)


@pytest.fixture(autouse=True)
def _library() -> None:
    build_library()


def readers(fields: list[tuple[str, str]]) -> tuple[JsonReader, JsonReader]:
    """With the library and without."""
    parsed = tuple(ParsedField(*pair) for pair in fields)
    with without_library():
        plain = JsonReader(parsed)
    return JsonReader(parsed), plain


def outcome(reader: JsonReader, texts: pa.Array) -> tuple[list[list[Any]], list[Any]]:
    """The columns of the rows that are accepted, as texts that tell -0.0 from 0.0, and the reasons of the others."""
    rejections = Rejections("parse", len(texts))
    rejections.note(~np.array(texts.is_valid()), "tombstone", None, "the value is null")
    columns = reader.read(_ENGINE, texts, rejections)
    for column in columns:
        column.validate(full=True)
    accepted = pa.array(rejections.open)
    reasons = sorted((mask.nonzero()[0].tolist(), *reason) for mask, *reason in rejections.reasons())
    return [[str(column.type), *map(repr, column.filter(accepted).to_pylist())] for column in columns], reasons


def assert_same(fields: list[tuple[str, str]], texts: list[str | None]) -> None:
    held = pa.array(texts, pa.string())
    native, plain = (outcome(reader, held) for reader in readers(fields))
    if native != plain:
        singly = [text for text in texts if len({repr(outcome(one, pa.array([text], pa.string()))) for one in readers(fields)}) > 1]
        pytest.fail(f"{fields}: {singly[:5]}")


def example(chance: random.Random) -> dict[str, Any]:
    """An object of every type, mostly right."""
    names = ["", "x", "ünï", 'q"\\/\n\x01', "😀" * 20, "long " * 30]
    values: dict[str, Any] = {
        "string": chance.choice(names), "bytes": chance.choice(names), "bool": chance.random() < 0.5, "array": [1, "é", [1.5, None], {}],
        "object": {"k": chance.choice([0.1, 1e-7, 12345.678, -1, "v"]), "k2": []}, "map": {"é": [True]}, "noise": {"a": {"a": [1e30]}},
        "decimal": chance.choice(["1.50", 1.5, 7]), "u": {"id": chance.randrange(2**62), "x": {"y": "z"}}, "t": "x", "u.id": None,
        "float": chance.choice([0.1, -0.0, 1e22, 1e23, 2**53 + 1, 123456789.123456789, 5e-324, chance.random() * 10**30]),
        "float32": chance.choice([0.1, 16777217, 3.4e38, 1e-46, chance.random()]), "float64": chance.random(),
    }  # fmt: skip
    for kind, source in JSON_TYPES.items():
        if source.is_integer:
            values[kind] = chance.choice([0, 1, 100, 127])
    keys = [key for key in values if chance.random() < 0.9]
    if chance.random() < 0.2:
        chance.shuffle(keys)
    return {key: values[key] for key in keys if chance.random() < 0.98}


def mutated(chance: random.Random, text: str) -> str:
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(text) + 1)
        to = min(len(text), at + chance.choice([0, 0, 1, 1, 2, 8]))
        piece = chance.choice(PIECES) if chance.random() < 0.8 else text[chance.randrange(len(text) + 1) :][: chance.randrange(1, 12)]
        text = text[:at] + piece + text[to:]
    return text


def test_mutated_records_have_the_same_outcome() -> None:
    chance = random.Random(5)
    made = []
    for _ in range(_MUTATIONS):
        separators = chance.choice([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
        made.append(mutated(chance, json.dumps(example(chance), ensure_ascii=chance.random() < 0.5, separators=separators)))
    for start in range(0, len(made), 1000):
        assert_same(WIDE, made[start : start + 1000])


DOCUMENTS = st.dictionaries(
    st.sampled_from([*KEYS, "e", "f", "", "\n", '"']),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**65), 2**65)
        | st.floats()
        | st.text(max_size=6)
        | st.sampled_from(["\x00", "/", "\ud83d"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["e", "f", "x"]), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(DOCUMENTS, st.booleans()), min_size=1, max_size=10), FIELDS, st.randoms(use_true_random=False))
def test_generated_records_have_the_same_outcome(
    documents: list[tuple[Any, bool]], fields: list[tuple[str, str]], chance: random.Random
) -> None:
    texts = [json.dumps(value, ensure_ascii=is_ascii) for value, is_ascii in documents]
    texts = [text for text in texts if not any("\ud800" <= letter <= "\udfff" for letter in text)]
    assert_same(fields, [*texts, None, *(mutated(chance, text) for text in texts)])


@pytest.mark.parametrize("kind", sorted(JSON_TYPES))
def test_every_value_of_every_type_has_the_same_outcome(kind: str) -> None:
    numbers = [
        "0",
        "-0",
        "-1",
        "00",
        "01",
        "1.",
        ".5",
        "-",
        "+1",
        "1e",
        "1e+",
        "1e5",
        "1E-5",
        "0e0",
        "-0e0",
        "0.10",
        "0.0",
        "1.0",
        "10.0",
        "-.1",
    ]
    numbers += [
        str(sign * 2**bits + delta) for bits in (7, 8, 15, 16, 24, 31, 32, 53, 63, 64, 65) for sign in (-1, 1) for delta in (-1, 0, 1)
    ]
    numbers += [
        "0.00001",
        "0.000001",
        "0.0000001",
        "123456789012345.5",
        "999999999999999.9",
        "0.30000000000000004",
        "1.7976931348623159e308",
    ]
    numbers += [
        "3.4028235e38",
        "3.4028236e38",
        "1e-50",
        "9" * 19,
        "9" * 20,
        "9" * 21,
        "1" * 400,
        "1." + "3" * 80,
        "2.2250738585072011e-308",
    ]
    strings = [f'"{piece}"' for piece in PIECES if piece != '"'] + ['"' + "x" * size + '\\n"' for size in range(34)]
    strings += [f'"{"y" * size}"' for size in range(34)]
    others = [
        "null",
        "nullx",
        "true",
        "tru",
        "false",
        "[]",
        "{}",
        "[1,]",
        '{"a":1,"a":2}',
        '{"a":1,}',
        "[" * 63 + "]" * 63,
        "[" * 65 + "]" * 65,
    ]
    others += [
        "[ 1 , 2 ]",
        '{ "a" : [ ] }',
        "[NaN]",
        "[1e5]",
        "[-0]",
        '["\\/\\u0041"]',
        '{"\\u0041":"\\u0001\\u001f\\u007f"}',
        "[0.1,2.50]",
    ]
    for spelling in ('{"a":%s}', ' { "a" :\t%s\n} ', '{"x":%s}'):
        assert_same([("a", kind)], [spelling % value for value in (*numbers, *strings, *others)])


def test_slices_nulls_and_other_buffers_are_read() -> None:
    fields = (ParsedField("a", "int64"), ParsedField("s", "string"), ParsedField("b", "bool"))
    texts = [None if n % 3 == 0 else json.dumps({"a": n, "s": f"ü{n}", "b": n % 2 == 0}) for n in range(100)]
    expected = [None if text is None else json.loads(text) for text in texts]
    whole = pa.array(texts, pa.string())
    reader = native_reader(fields)
    assert reader is not None
    for start, count in ((0, 100), (1, 99), (7, 13), (8, 0), (99, 1), (100, 0)):
        for held in (whole.slice(start, count), pa.concat_arrays([whole.slice(start, count)]), whole.slice(start).slice(0, count)):
            columns, proven = reader.read(held)
            assert proven.all()
            rows = expected[start : start + count]
            found = [column.to_pylist() for column in columns]
            assert found == [[row and row[name] for row in rows] for name in ("a", "s", "b")]
    for empty in (pa.array([], pa.string()), pa.nulls(3, pa.string()), pa.array(["", ""], pa.string())):
        assert all(column.null_count == len(empty) for column in reader.read(empty)[0])
    # Offsets at an odd address, as a frame of a foreign writer may have them.
    shifted = pa.py_buffer(b"x" + whole.buffers()[1].to_pybytes()).slice(1)
    valid, _, content = whole.buffers()
    again = pa.Array.from_buffers(pa.string(), 100, [valid, shifted, content])
    assert [column.to_pylist() for column in reader.read(again)[0]] == [column.to_pylist() for column in reader.read(whole)[0]]


def test_offsets_outside_of_the_buffer_are_refused() -> None:
    reader = native_reader((ParsedField("a", "int64"),))
    assert reader is not None
    for offsets in ([0, 99, 7], [0, -8, 7], [0, 6, 2, 7]):
        buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(b'{"a":1}')]
        with pytest.raises(ValueError, match="outside of their buffer"):
            reader.read(pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers))
    with pytest.raises(TypeError, match="must be strings"):
        reader.read(pa.array(["{}"], pa.large_string()))


def test_a_text_at_the_end_of_its_memory_is_read_to_its_end_only() -> None:
    """What stands behind a text, of the next one or of nobody, is no part of it."""
    reader = native_reader((ParsedField("a", "string"),))
    assert reader is not None
    text = '{"a":"' + "x" * 40 + '"}'
    for cut in range(len(text)):
        columns, proven = reader.read(pa.array([text[:cut], text[cut:]], pa.string()))
        assert not proven[0]
        assert columns[0].null_count == 2 if cut else columns[0].to_pylist() == [None, "x" * 40]


def test_keys_that_are_always_new_or_collide_do_no_harm() -> None:
    fresh = [json.dumps({"a": n, **{f"k{n}_{i}": i for i in range(30)}}) for n in range(3000)]
    many = json.dumps({**{f"k{i}": i for i in range(20_000)}, "a": 1})
    twice = json.dumps({f"k{i}": i for i in range(2_000)})[:-1] + ',"k1999":1,"a":2}'
    assert_same([("a", "int64")], [*fresh, many, twice, '{"a":1}', fresh[0][:-1] + ',"k0_0":1}'])


def test_calls_at_the_same_time_do_not_meet() -> None:
    reader = native_reader((ParsedField("a", "int64"), ParsedField("s", "string")))
    assert reader is not None
    batches = [pa.array([json.dumps({"a": n, "s": str(n), f"x{worker}": n}) for n in range(5000)]) for worker in range(4)]

    def read(texts: pa.Array) -> list[Any]:
        columns, proven = reader.read(texts)
        return [proven.all(), *(column.to_pylist() for column in columns)]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(read, batches * 5):
            assert found == [True, list(range(5000)), [str(n) for n in range(5000)]]


def test_a_clean_stream_never_comes_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    native, _ = readers(WIDE)
    monkeypatch.setattr(JsonReader, "_checked", lambda *_: pytest.fail("not read by the library"))
    chance = random.Random(1)
    texts = [
        json.dumps({"string": "ü\n", "u": {"id": n, "x": {"y": "z"}}, "array": [1.25, "é"], "float": chance.random()}) for n in range(50)
    ]
    columns = native.read(_ENGINE, pa.array(texts), Rejections("parse", 50))
    assert columns[[name for name, _ in WIDE].index("u.id")].to_pylist() == list(range(50))


def test_what_cannot_be_built_or_loaded_leaves_the_plain_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no C compiler 'no-such-compiler'" in JSON_READER.build()
    assert JSON_READER.load() is None
    assert native_reader((ParsedField("a", "int64"),)) is None
    JSON_READER.path().write_bytes(b"not a library")
    with pytest.warns(RuntimeWarning, match="cannot be loaded"):
        assert JSON_READER.load() is None
    monkeypatch.setenv("CC", "cc")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "a.c").write_text("int a(")
    assert NativeLibrary("broken", broken).build().startswith("cc ended with 1")
