"""Times in a format of the file: stage and reference agree with Python's strptime and with plain arithmetic."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.connectors.sql import statement
from pipelines.process.dedup import TIME_COLUMN, with_times
from pipelines.process.steps.mapping.columns import TargetColumn, check_mapping, map_columns
from pipelines.proof.verification.plain_form import duckdb_type
from pipelines.proof.verification.values import MACROS, reading
from pipelines.protocol.records import INSTANT, POSITION_FIELDS
from pipelines.types.columns import parse_type
from pipelines.types.duckdb import open_engine
from pipelines.types.fields import ParsedField
from pipelines.types.time_formats import DIRECTIVES, check_format, tokens

REFUSED = "refused"
KINDS = {"string": "VARCHAR", "array": "ARRAY", "object": "OBJECT"}
"""What DuckDB calls the values of JSON."""
_ENGINE = open_engine()
FAR_AHEAD_US = 10**17
"""The records of this file arrive in 1970."""


@pytest.fixture(scope="module", autouse=True)
def _macros() -> Iterator[None]:
    for macro in MACROS:
        _ENGINE.connection.execute(statement(f"reference/{macro}"))
    return


def records(texts: list[str | None]) -> pa.Table:
    zeros = pa.array([0] * len(texts), pa.int64())
    positions = {field.name: zeros.cast(field.type) for field in POSITION_FIELDS if field.name != "_tf_topic"}
    topic = pa.array(["t"] * len(texts)).dictionary_encode()
    return pa.table({**positions, "_tf_topic": topic, "_tf_ordinal": pa.array(range(len(texts)), pa.uint32()), "c": pa.array(texts)})


def stage(column: str, texts: list[str | None], notation: str) -> list[Any]:
    """Ticks of the column since 1970, or REFUSED, of each text."""
    target = TargetColumn("c", "c", parse_type(column), True, check_format(notation))
    assert check_mapping([ParsedField("c", "string")], [target]) == []
    mapped = map_columns(_ENGINE, records(texts), [target]).accepted
    found: list[Any] = [REFUSED] * len(texts)
    ticks = mapped.column("c").cast(pa.int32() if column.startswith("Date32") or column == "Date" else pa.int64()).to_pylist()
    unit = 10 ** (9 - parse_type(column).number(0)) if column.startswith("DateTime64") else 1
    per_tick = 1 if not column.startswith("DateTime64(9") else unit
    for ordinal, tick in zip(mapped.column("_tf_ordinal").to_pylist(), ticks, strict=True):
        found[ordinal] = tick if tick is None else tick // per_tick
    return found


def reference(column: str, text: str, notation: str) -> Any:
    fits, value = read_as("string", column, text, notation)
    return value if fits else REFUSED


def read_as(source: str, column: str, text: str, notation: str) -> tuple[bool | None, Any]:
    """Whether the reference takes a text of a kind of JSON, and as which value."""
    fits, value = _ENGINE.ask(statement_of(source, column, notation), pa.array([text], pa.string()))
    return fits[0].as_py(), value[0].as_py()


@cache
def statement_of(source: str, column: str, notation: str) -> str:
    """The engine plans it once, for 50 ms of CPU."""
    kind = parse_type(column)
    one = reading(source, kind, f"'{KINDS[source]}'", "t", unit=notation)
    return f"SELECT {one.fits}, ({one.value})::{duckdb_type(kind)} FROM (SELECT v AS t FROM _tf_values)"


def micros(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def strptime(text: str, notation: str) -> int:
    """Microseconds since 1970 by Python, which has no %F and no %T."""
    read = datetime.strptime(text, notation.replace("%F", "%Y-%m-%d").replace("%T", "%H:%M:%S"))
    return micros(read if read.tzinfo else read.replace(tzinfo=UTC))


FORMATS = st.sampled_from(
    [
        "%Y-%m-%d %H:%M:%S",
        "%d/%m/%Y %H:%M:%S.%f",
        "%Y%m%d%H%M%S",
        "%Y%m%dT%H%M%S%z",
        "%a, %d %b %Y %H:%M:%S %z",
        "%d/%b/%Y:%H:%M:%S %z",
        "%A %B %d %Y, %I:%M:%S %p",
        "%m/%d/%y %I:%M %p",
        "%F %T",
        "%d.%m.%Y",
        "100%% %F|%T",
    ]
)
ZONES = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@settings(deadline=None, max_examples=150)
@given(FORMATS, st.datetimes(datetime(1900, 1, 3), datetime(2299, 12, 29)), ZONES)
@example("%m/%d/%y %I:%M %p", datetime(1969, 1, 1, 0, 5), UTC)
@example("%m/%d/%y %I:%M %p", datetime(2068, 12, 31, 12, 5), UTC)
@example("%Y%m%d%H%M%S", datetime(2024, 2, 29, 23, 59, 59), UTC)
def test_a_time_in_a_format_is_read_as_strptime_does(notation: str, at: datetime, zone: timezone) -> None:
    text = at.replace(tzinfo=zone).strftime(notation)
    if "%y" not in notation:
        # strftime of glibc writes the year 999 with three digits; these have four.
        assert f"{at.year}" in text
    wanted = strptime(text, notation)
    assert [wanted] == stage("DateTime64(6)", [text], notation) == [reference("DateTime64(6)", text, notation)]


@pytest.mark.parametrize(
    ("notation", "text", "wanted"),
    [
        ("%d/%m/%Y", "1/2/2026", datetime(2026, 2, 1)),
        ("%d/%m/%Y", "01/02/2026", datetime(2026, 2, 1)),
        ("%B %d, %Y", "MAY 5, 2026", datetime(2026, 5, 5)),
        ("%I:%M %p %F", "12:05 am 2026-01-31", datetime(2026, 1, 31, 0, 5)),
        ("%I:%M %p %F", "12:05 PM 2026-01-31", datetime(2026, 1, 31, 12, 5)),
        ("%F %H", "2026-01-31 7", datetime(2026, 1, 31, 7)),
        ("%F %T %z", "2026-01-31 07:00:00 +02:00", datetime(2026, 1, 31, 5)),
        ("%F %T %z", "2026-01-31 07:00:00 -0030", datetime(2026, 1, 31, 7, 30)),
        ("%F %T %z", "2026-01-31 07:00:00 Z", datetime(2026, 1, 31, 7)),
        ("%Y-%m-%dT%T", "2026-01-31T07:00:00", datetime(2026, 1, 31, 7)),
        ("[%F] über (%T)", "[2026-01-31] über (07:00:00)", datetime(2026, 1, 31, 7)),
    ],
)
def test_what_a_directive_takes(notation: str, text: str, wanted: datetime) -> None:
    ticks = micros(wanted.replace(tzinfo=UTC))
    assert [ticks] == stage("DateTime64(6)", [text], notation) == [reference("DateTime64(6)", text, notation)]


@pytest.mark.parametrize(
    ("notation", "text"),
    [
        ("%d/%m/%Y", "31/02/2026"),
        ("%d/%m/%Y", "00/02/2026"),
        ("%d/%m/%Y", "01/13/2026"),
        ("%d/%m/%Y", "01/02/26"),
        ("%d/%m/%Y", " 01/02/2026"),
        ("%d/%m/%Y", "01/02/2026\n"),
        ("%d/%m/%Y", "01-02-2026"),
        ("%d/%m/%Y", "٠١/02/2026"),
        ("%d/%m/%Y", ""),
        ("%F %T", "2026-01-31 24:00:00"),
        ("%F %T", "2026-01-31 23:60:00"),
        ("%F %T", "2026-01-31 23:59:60"),
        ("%F %T.%f", "2026-01-31 23:59:59."),
        ("%F %T.%f", "2026-01-31 23:59:59.1234567890"),
        ("%F %I:%M %p", "2026-01-31 13:00 PM"),
        ("%F %I:%M %p", "2026-01-31 00:00 AM"),
        ("%F %T %z", "2026-01-31 07:00:00 CET"),
        ("%F %T %z", "2026-01-31 07:00:00 +24:00"),
        ("%FT%T", "2026-01-31t07:00:00"),
        ("%d %b %Y", "01 Mai 2026"),
        ("%Y%m%d", "2026131"),
        ("%F", "1899-12-31"),
        ("%F", "2300-01-01"),
    ],
)
def test_a_text_of_another_form_has_no_place(notation: str, text: str) -> None:
    assert [REFUSED] == stage("DateTime64(6)", [text], notation) == [reference("DateTime64(6)", text, notation)]


def test_nanoseconds_are_kept_and_cut_to_the_column() -> None:
    notation, text = "%d/%m/%Y %T.%f", "31/01/2026 23:59:59.123456789"
    second = micros(datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)) // 10**6
    for column, wanted in (
        ("DateTime64(9)", second * 10**9 + 123456789),
        ("DateTime64(6)", second * 10**6 + 123456),
        ("DateTime", second),
    ):
        assert [wanted] == stage(column, [text], notation) == [reference(column, text, notation)]


def test_a_format_without_a_time_of_day_makes_a_date() -> None:
    days = (date(2026, 1, 31) - date(1970, 1, 1)).days
    for column in ("Date", "Date32"):
        assert [days, REFUSED, None] == stage(column, ["31.01.2026", "31.02.2026", None], "%d.%m.%Y")
        assert reference(column, "31.01.2026", "%d.%m.%Y") == days
        assert reference(column, "31.02.2026", "%d.%m.%Y") == REFUSED


def test_a_date_that_would_lose_a_time_of_day_is_refused() -> None:
    target = TargetColumn("c", "c", parse_type("Date"), False, "%d.%m.%Y %H:%M")
    (fault,) = check_mapping([ParsedField("c", "string")], [target])
    assert "the format %d.%m.%Y %H:%M has a time of day, which Date does not hold" in fault


def test_a_format_means_nothing_in_a_column_of_text() -> None:
    target = TargetColumn("c", "c", parse_type("String"), False, "%d/%m/%Y")
    assert map_columns(_ENGINE, records(["1/2/2026"]), [target]).accepted.column("c").to_pylist() == ["1/2/2026"]


def test_the_message_names_the_format_and_no_value() -> None:
    target = TargetColumn("c", "c", parse_type("DateTime"), False, "%d/%m/%Y")
    (row,) = map_columns(_ENGINE, records(["s3cret"]), [target]).rejected.to_pylist()
    assert (row["code"], row["message"]) == ("invalid_value", "column c (DateTime): the string is no time in the format %d/%m/%Y")


def test_a_format_counts_for_the_time_of_a_dedup_window() -> None:
    given_times = records(["1/2/2026 00:00:01", "2026-02-01T00:00:01Z", None])
    timed = with_times(_ENGINE, given_times, "c", FAR_AHEAD_US, "%d/%m/%Y %T")
    assert timed.accepted.column(TIME_COLUMN).cast(INSTANT).to_pylist() == [datetime(2026, 2, 1, 0, 0, 1, tzinfo=UTC)]
    assert timed.rejected.column("code").to_pylist() == ["invalid_time", "null_time"]


@pytest.mark.parametrize(
    ("notation", "fault"),
    [
        ("%H:%M", "has no year (%Y or %y)"),
        ("%Y-%m", "has no day (%d)"),
        ("%Y-%d", "has no month (%m or %b or %B)"),
        ("%Y %y-%m-%d", "%Y and %y say the same"),
        ("%F %H %H", "%H and %H say the same"),
        ("%F %I:%M", "%I needs %p"),
        ("%F %H %p", "%p needs %I"),
        ("%F %M", "%M needs %H or %I"),
        ("%F %H:%S", "%S needs %M"),
        ("%F %f", "%f needs %S"),
        ("%F %T.%f%Y", "%Y and %Y say the same"),
        ("%m-%d %T.%f%Y", "no digits may follow it"),
        ("%F %Q", "'%Q' is no directive here"),
        ("%F %Z", "'%Z' is no directive here"),
        ("%F %", "'%' is no directive here"),
        ("%F\n", "printable"),
        ("%F" + "x" * 63, "at most 64"),
    ],
)
def test_a_format_with_two_readings_or_none_is_refused(notation: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        check_format(notation)


def test_every_directive_is_read_by_stage_and_reference() -> None:
    at = datetime(2026, 1, 31, 9, 8, 7, 120000, tzinfo=UTC)
    for one in DIRECTIVES:
        if one == "%%":
            continue
        rest = {
            "%y": "%m-%d", "%b": "%Y %d", "%B": "%Y %d", "%m": "%Y %d", "%d": "%Y %m", "%Y": "%m %d", "%F": "",
            "%p": "%I %F", "%I": "%p %F", "%M": "%H %F", "%S": "%H:%M %F", "%f": "%T %F",
        }.get(one, "%F")  # fmt: skip
        notation = f"{rest}|{one}"
        text = json.loads(json.dumps(at.strftime(notation)))
        wanted = strptime(text, notation)
        assert [wanted] == stage("DateTime64(6)", [text], notation) == [reference("DateTime64(6)", text, notation)], one
        assert len(tokens(notation)) > 2


NESTED = [
    ("Array(DateTime64(3))", "ms", '[1769903999123,"1769903999123.9",null]', REFUSED),
    ("Array(DateTime64(3))", "ms", '[1769903999123,"1769903999124.9"]', [1769903999123, 1769903999124]),
    ("Array(Nullable(DateTime))", "s", '[1769903999,null,"1769904000.5"]', [1769903999, None, 1769904000]),
    ("Array(DateTime)", "s", "[1.5]", REFUSED),
    ("Array(DateTime)", "s", '["2026-01-31T23:59:59Z"]', REFUSED),
    ("Array(DateTime)", "", '["2026-01-31T23:59:59Z"]', [1769903999]),
    ("Array(DateTime)", "%d/%m/%Y %T", '["31/01/2026 23:59:59"]', [1769903999]),
    ("Array(DateTime)", "%d/%m/%Y %T", "[1769903999]", REFUSED),
    ("Array(Date)", "%d/%m/%Y", '["31/01/2026"]', [20484]),
    ("Array(Date)", "%d/%m/%Y %T", '["2026-01-31"]', [20484]),
    ("Map(String, DateTime64(6))", "us", '{"a":1769903999123456}', [("a", 1769903999123456)]),
    ("Tuple(at DateTime64(3), n Int64)", "ms", '{"at":"1769903999123","n":"7"}', {"at": 1769903999123, "n": 7}),
    ("Tuple(at DateTime64(3), n Int64)", "ms", '{"at":true,"n":7}', REFUSED),
]


@pytest.mark.parametrize(("column", "notation", "text", "wanted"), NESTED)
def test_times_inside_of_composites_are_read_in_the_notation(column: str, notation: str, text: str, wanted: Any) -> None:
    source = "array" if text.startswith("[") else "object"
    kind = parse_type(column)
    mapped = map_columns(_ENGINE, records([text]), [TargetColumn("c", "c", kind, False, notation)]).accepted
    assert (ticks(mapped.column("c").to_pylist()[0]) if mapped.num_rows else REFUSED) == wanted
    fits, value = read_as(source, column, text, notation)
    plain = {"at": value["1"], "n": value["2"]} if fits and isinstance(value, dict) else value
    if fits and column.startswith("Map"):
        plain = [(pair["1"].decode(), pair["2"]) for pair in value]
    assert (plain if fits else REFUSED) == wanted


def ticks(value: Any) -> Any:
    """Arrow's instants as the numbers of the tests: seconds, or those of the texts."""
    if isinstance(value, dict):
        return {name: ticks(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(ticks(one) for one in value)
    if isinstance(value, datetime):
        found = micros(value)
        return found // 10**6 if not found % 10**6 else found // 1000 if not found % 1000 else found
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value
