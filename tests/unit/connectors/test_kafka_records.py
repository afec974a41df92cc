"""What the Kafka client gives as RAW_SCHEMA, when a message is one that it cannot give whole."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from pipelines.cli.dlq import _time_of_kafka
from pipelines.connectors.kafka import records as kafka_records
from pipelines.connectors.kafka.records import to_records
from pipelines.process.steps.mapping.columns import TargetColumn, map_columns
from pipelines.process.steps.parse import parse
from pipelines.protocol.records import MAX_RECORD_BYTES, RAW_SCHEMA, UNREADABLE_HEADER, with_positions
from pipelines.types.columns import parse_type
from pipelines.types.duckdb import open_engine
from pipelines.types.record_columns import RecordColumn

NOON_MS = 1_767_960_000_000


def message(offset: int, value: bytes = b"{}", milliseconds: int = NOON_MS, kind: int = TIMESTAMP_CREATE_TIME) -> Message:
    return Message(topic="t", partition=2, offset=offset, value=value, key=b"k", timestamp=(kind, milliseconds))


def test_an_unreadable_time_is_the_end_of_time_when_oversize() -> None:
    table = to_records([message(0, milliseconds=NOON_MS * 1000), message(1, b"v" * (MAX_RECORD_BYTES + 1)), message(2)], 2)
    assert table.schema == RAW_SCHEMA
    first, second, third = table.to_pylist()
    assert first["timestamp"] == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    assert second["oversize"]["bytes"] == MAX_RECORD_BYTES + 2
    assert third["timestamp"] == datetime(2026, 1, 9, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(("milliseconds", "year"), [(2**63 - 1, 9999), (-(2**63), 1)])
def test_a_time_that_no_instant_can_be_is_told_by_every_reader(milliseconds: int, year: int) -> None:
    (row,) = to_records([message(0, milliseconds=milliseconds)], 2).to_pylist()
    assert row["timestamp"].year == year


def milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000)


TIMES = {
    "the last of all": 2**63 - 1,
    "the first of all": -(2**63),
    "noon in microseconds": NOON_MS * 1000,
    "noon": NOON_MS,
    "1899": milliseconds("1899-12-31T23:59:59.999"),
    "1900": milliseconds("1900-01-01T00:00:00"),
    "1969": milliseconds("1969-12-31T23:59:59.998"),
    "1970": 0,
    "2106": milliseconds("2106-02-07T06:28:15.999"),
    "2106 later": milliseconds("2106-02-07T06:28:16"),
    "2262": milliseconds("2262-04-11T23:47:15.999"),
    "2262 later": milliseconds("2262-04-11T23:47:16"),
    "2299": milliseconds("2299-12-31T23:59:59.999"),
    "2300": milliseconds("2300-01-01T00:00:00"),
}
FITS = {
    "DateTime": {"1970", "noon", "2106"},
    "DateTime64(3)": {"1900", "1969", "1970", "noon", "2106", "2106 later", "2262", "2262 later", "2299"},
    "DateTime64(9)": {"1900", "1969", "1970", "noon", "2106", "2106 later", "2262"},
}


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("kind", FITS)
def test_a_time_beyond_a_column_is_rejected_where_it_is_mapped(kind: str, nullable: bool) -> None:
    messages = [message(offset, milliseconds=at) for offset, at in enumerate(TIMES.values())]
    records = with_positions(to_records(messages, 2), 7, "t", 0)
    column = parse_type(f"Nullable({kind})" if nullable else kind)
    with open_engine() as engine:
        parsed = parse(engine, records, [], columns=[RecordColumn("sent", "timestamp", "", "timestamp")]).accepted
        made = map_columns(engine, parsed, [TargetColumn("sent", "at", column, False)])
        unused = map_columns(engine, parsed, [])
    names = list(TIMES)
    assert {names[offset] for offset in made.accepted["_tf_offset"].to_pylist()} == FITS[kind]
    assert set(made.rejected["code"].to_pylist()) == {"out_of_range"}
    assert made.accepted["at"].null_count == 0
    assert unused.accepted.num_rows == len(TIMES), "where nothing uses its time, a record is a row"


@pytest.mark.parametrize(("milliseconds", "kind"), [(-1, TIMESTAMP_CREATE_TIME), (0, TIMESTAMP_NOT_AVAILABLE)])
def test_a_record_without_a_time_has_none(milliseconds: int, kind: int) -> None:
    first, second = to_records([message(0, milliseconds=milliseconds, kind=kind), message(1)], 2).to_pylist()
    assert (first["timestamp"], second["timestamp"]) == (None, datetime(2026, 1, 9, 12, 0, tzinfo=UTC))


def test_a_letter_never_shows_the_end_of_time_as_its_time() -> None:
    times = to_records([message(0, milliseconds=at) for at in (2**63 - 1, -(2**63), NOON_MS, -1)], 2)["timestamp"].to_pylist()
    assert [_time_of_kafka(at) for at in times] == [
        "9999-12-31 23:59:59.999000 UTC or later",
        "1-01-01 00:00:00.000000 UTC or earlier",
        "2026-01-09 12:00:00.000000 UTC",
        None,
    ]


def fail_at(monkeypatch: pytest.MonkeyPatch, poison: set[int], error: Exception) -> None:
    """The client fails for messages at these offsets, alone or among others."""
    read = kafka_records._records

    def failing(messages: list[Message], *more: Any) -> pa.Table:
        if poison & {m.offset() for m in messages}:
            raise error
        return read(messages, *more)

    monkeypatch.setattr(kafka_records, "_records", failing)


def test_unreadable_messages_are_found_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, {0, 7, 8, 41}, SystemError("returned NULL"))
    table = to_records([message(offset, b'{"id": %d}' % offset) for offset in range(42)], 2)
    assert table.column("offset").to_pylist() == list(range(42))
    unreadable = [row for row in table.to_pylist() if row["oversize"]]
    assert [row["offset"] for row in unreadable] == [0, 7, 8, 41]
    assert {(row["key"], row["headers"][0], row["partition"]) for row in unreadable} == {(b"k", (UNREADABLE_HEADER, b"SystemError"), 2)}
    assert unreadable[3]["value"] == b'{"id": 41}'


@pytest.mark.parametrize("error", [MemoryError(), OSError(24, "Too many open files")])
def test_an_error_of_the_host_is_no_fault_of_a_message(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    fail_at(monkeypatch, {1}, error)
    with pytest.raises(type(error)):
        to_records([message(0), message(1)], 2)


def test_a_file_error_of_the_client_is_the_messages_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, {1}, FileNotFoundError(2, "No such file or directory"))
    rows = to_records([message(0), message(1), message(2)], 2).to_pylist()
    assert [row["offset"] for row in rows if row["oversize"]] == [1]
