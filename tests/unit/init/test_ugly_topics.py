"""Ten ugly topics: each gives a file that validates and lints clean, whose preview makes a row of each record, or a clear sentence."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pipelines.config import parse
from pipelines.errors import SampleError
from pipelines.init.file_text import Place
from pipelines.init.records import Sample
from pipelines.init.run import Draft, draft
from pipelines.preview.declared import declared_program
from pipelines.preview.given import frames_of, of_lines
from pipelines.preview.readable import readable_rows
from pipelines.preview.run import preview

PLACE = Place("ugly-topic", "ugly", {"brokers": "kafka-1:9092"}, {"host": "ch", "port": "8123", "database": "default"}, "ugly")
Values = Sequence[Any]


def sample_of(values: Values) -> Sample:
    sample = Sample("topic ugly")
    for value in values:
        sample.add(value if value is None or isinstance(value, bytes) else json.dumps(value).encode())
    return sample


def drafted(values: Values, **options: Any) -> Draft:
    return draft(PLACE, sample_of(values), **options)


def types_of(made: Draft) -> dict[str, str]:
    return {column.facts.name: column.type for column in made.columns}


def rows_of(made: Draft, values: Values) -> list[dict[str, Any]]:
    """The rows that a preview of the file makes of the records."""
    config = parse(made.text, name="ugly", environment={}, offline=True)
    program = declared_program(config)
    lines = [json.dumps(value).encode() for value in values]
    found = preview(program, frames_of(of_lines(lines), config.sources))
    rows = [row for record in found.records for _, row in readable_rows(record.last.fields or {}, program)]
    return [{name: value for name, value in row.items() if not name.startswith("_tf_")} for row in rows]


def is_clean(made: Draft, records: int) -> bool:
    return (dict(made.outcomes), list(made.findings)) == ({"row": records}, [])


MIXED = [{"id": "a", "v": 1}, {"id": "b", "v": "x"}, {"id": "c", "v": [1]}, {"id": "d", "v": True}, {"id": "e", "v": 1.5}]
NULLS = [{"id": 1, "a": None}, {"id": 2}, {"id": 3, "a": None, "b": "x", "c": [1]}, {"id": 4, "b": None, "c": None}]
NESTED = [
    {"id": 1, "items": [{"sku": "a", "tags": [], "n": None}, {"sku": "b", "tags": ["x"], "n": 2}]},
    {"id": 2, "items": []},
    {"id": 3, "items": [{"sku": "c", "tags": ["y", "z"]}]},
]
TEXTS = [{"id": f"00{n}", "price": f"{n}.50", "count": str(n), "zip": "01234", "at": str(1_769_903_999_000 + n)} for n in range(3)]
DOTTED = [{"a.b": 1, "c": {"d": "x", "e.f": 2}}, {"a.b": 2, "c": {"d": "y", "e.f": 3}}]
HUGE = [{"id": 1, "big": 10**30, "wide": -(2**200), "beyond": 10**90}, {"id": 2, "big": 5, "wide": 1, "beyond": 2}]
UNICODE = [{"größe": 1, "名前": "x", "é": "y", "e": "z", "with space": True, "1st": 2, "_tf_offset": 3, "": 4}]


def test_a_field_of_several_types_becomes_the_text_of_its_value() -> None:
    made = drafted(MIXED)
    assert is_clean(made, 5)
    assert types_of(made) == {"id": "String", "v": "String"}
    assert [row["v"] for row in rows_of(made, MIXED)] == ["1", "x", "[1]", "true", "1.5"]


def test_nulls_and_absent_fields_make_columns_nullable() -> None:
    made = drafted(NULLS)
    assert is_clean(made, 4)
    assert types_of(made) == {"id": "Int64", "a": "", "b": "Nullable(String)", "c": "Nullable(String)"}
    assert "null or absent in 75.0% of the sample" in made.text
    assert [row["c"] for row in rows_of(made, NULLS)] == [None, None, "[1]", None]


def test_arrays_of_objects_become_arrays_of_tuples() -> None:
    made = drafted(NESTED)
    assert is_clean(made, 3)
    assert types_of(made)["items"] == "Array(Tuple(sku String, tags Array(String), n Nullable(Int64)))"


def test_numbers_as_texts_become_numbers_and_codes_stay_texts() -> None:
    made = drafted(TEXTS)
    assert is_clean(made, 3)
    assert types_of(made) == {"id": "String", "price": "Decimal(18, 2)", "count": "Int64", "zip": "String", "at": "DateTime64(3)"}
    assert "{name: at, type: string, unit: ms}" in made.text


def test_an_empty_topic_is_said_in_a_sentence() -> None:
    with pytest.raises(SampleError, match="sampling topic ugly: it holds no records; send some, or give records of another place"):
        drafted([])


def test_a_topic_of_binary_values_is_said_in_a_sentence() -> None:
    with pytest.raises(
        SampleError, match=r"none of 2 records is a JSON object, and Tallyflow reads JSON; the first begins with b'\\x00\\x01"
    ):
        drafted([b"\0\1avro", b"\xff\xfe"])


def test_a_topic_of_keys_alone_is_said_in_a_sentence() -> None:
    with pytest.raises(SampleError, match="2 records, none with a value: keys alone make no rows"):
        drafted([None, None])


def test_dotted_keys_are_read_where_they_stand() -> None:
    made = drafted(DOTTED)
    assert is_clean(made, 2)
    assert types_of(made) == {"a.b": "Int64", "c.d": "String", "c.e.f": "Int64"}
    assert rows_of(made, DOTTED) == [{"a_b": 1, "c_d": "x", "c_e_f": 2}, {"a_b": 2, "c_d": "y", "c_e_f": 3}]


def test_huge_integers_keep_every_digit() -> None:
    made = drafted(HUGE)
    assert is_clean(made, 2)
    assert types_of(made) == {"id": "Int64", "big": "Int128", "wide": "Int256", "beyond": "String"}
    assert [row["beyond"] for row in rows_of(made, HUGE)] == [str(10**90), "2"]


def test_unicode_names_get_columns_with_plain_names() -> None:
    made = drafted(UNICODE)
    assert is_clean(made, 1)
    (row,) = rows_of(made, UNICODE)
    assert row == {"grosse": 1, "field": "x", "e": "y", "e_2": "z", "with_space": True, "_1st": 2, "f_tf_offset": 3}
    assert "no path can name this key" in made.text


def test_other_records_among_objects_are_counted_and_left_out() -> None:
    sample = sample_of([{"id": 1}, None, b"\xff", b"[1]", b'{"id": 1, "id": 2}', b'{"id": NaN}'])
    assert (len(sample.documents), sample.empty, sample.unreadable, sample.records) == (1, 1, 4, 6)
    assert is_clean(draft(PLACE, sample), 1)


def test_fields_of_several_types_alone_are_said_in_a_sentence() -> None:
    with pytest.raises(SampleError, match="no field has a value of one type that its records share"):
        drafted([{"v": 1}, {"v": "x"}])


def test_an_object_whose_keys_are_values_becomes_a_map() -> None:
    values = [{"id": n, "by_user": {f"u{n}-{i}": i for i in range(5)}} for n in range(20)]
    made = drafted(values)
    assert is_clean(made, 20)
    assert types_of(made)["by_user"] == "Map(String, Nullable(String))"


@pytest.mark.parametrize("name", ["yes", "null", "a: b", "# c", "{x}", "- d", "${HOME}", "it's", "😀", "a,b", "N", "1.5"])
def test_a_name_that_means_something_in_yaml_stays_a_name(name: str) -> None:
    made = drafted([{"id": 1, name: 2}])
    config = parse(made.text, name="ugly", environment={"HOME": "/root"}, offline=True)
    read = [field.name for field in config.sources[0].schema_fields]
    assert read == ["id", name]


def test_texts_with_several_readings_stay_texts_and_name_them() -> None:
    made = drafted([{"id": 1, "day_at": "01/02/2026"}, {"id": 2, "day_at": "03/04/2026"}])
    assert types_of(made)["day_at"] == "String"
    assert "a time, but %d/%m/%Y and %m/%d/%Y fit: set `format` and a DateTime" in made.text
    assert "tallyflow: ignore TF008" in made.text
    assert made.findings == []


@pytest.mark.parametrize(
    ("texts", "kind", "notation"),
    [
        (["31/01/2026 23:59:59", "01/02/2026 00:00:00"], "DateTime", "%d/%m/%Y %H:%M:%S"),
        (["31/Jan/2026:23:59:59 +0100"], "DateTime", "%d/%b/%Y:%H:%M:%S %z"),
        (["2026-01-31T23:59:59Z", "2026-01-31 23:59:59.123456"], "DateTime64(6)", ""),
        (["2026-01-31"], "Date", ""),
        (["1769903999", "1769904000"], "DateTime", "s"),
        (["31.01.2026"], "Date", "%d.%m.%Y"),
    ],
)
def test_times_in_texts_are_found_in_their_form(texts: list[str], kind: str, notation: str) -> None:
    made = drafted([{"id": n, "seen_at": text} for n, text in enumerate(texts)])
    column = made.columns[1]
    assert (column.type, column.notation) == (kind, notation)
    assert is_clean(made, len(texts))


@pytest.mark.parametrize(("unit", "kind"), [("s", "DateTime"), ("ms", "DateTime64(3)"), ("us", "DateTime64(6)"), ("ns", "DateTime64(9)")])
def test_the_unit_of_a_number_is_told_by_its_size(unit: str, kind: str) -> None:
    number = 1_769_903_999 * 10 ** {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    made = drafted([{"createdAt": number, "count": number}])
    assert [(column.type, column.notation) for column in made.columns] == [(kind, unit), ("Int64", "")]


def test_words_that_end_like_a_time_or_a_key_are_neither() -> None:
    made = drafted([{"format": 1_769_903_999_123, "paid": "7"}])
    assert types_of(made) == {"format": "Int64", "paid": "Int64"}


def test_a_number_that_only_looks_like_a_time_says_so() -> None:
    made = drafted([{"started": 1_769_903_999_123, "seconds": 1_769_903_999, "code": n, "at": 1_769_903_999_123} for n in (1, 2)])
    assert types_of(made) == {"started": "Int64", "seconds": "Int64", "code": "Int64", "at": "DateTime64(3)"}
    assert [line.strip() for line in made.text.splitlines() if "a time?" in line] == ["# a time? all fit `unit: ms` and DateTime64(3)"]


def test_few_distinct_texts_are_low_cardinality_and_sort() -> None:
    values = [
        {"event_id": f"e{n}", "ts": 1_769_903_999_000 + n, "kind": ("view", "buy")[n % 2], "n": None if n else "x"} for n in range(40)
    ]
    made = drafted(values)
    assert types_of(made)["kind"] == "LowCardinality(String)"
    assert "order_by: [kind, ts, event_id]" in made.text
    assert "ORDER BY (kind, ts, event_id)" in made.statement
    assert "PARTITION BY toYYYYMM(ts)" in made.statement
    assert [name for name, _ in made.keys] == ["event_id"]


def test_a_key_that_is_chosen_drops_copies() -> None:
    made = drafted([{"id": "a"}, {"id": "a"}, {"id": "b"}], dedup=("id", "12h"))
    assert dict(made.outcomes) == {"row": 2, "duplicate": 1}
    assert "config: {key: id, time_window: 12h}" in made.text


def test_a_key_that_is_no_field_is_named() -> None:
    with pytest.raises(SampleError, match="no field 'uid' to drop copies by; candidates: id"):
        drafted([{"id": "a"}], dedup=("uid", "12h"))
