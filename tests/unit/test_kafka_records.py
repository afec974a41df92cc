"""What the Kafka client gives as RAW_SCHEMA, when a message is one that it cannot give whole."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from pipelines.connectors import kafka_records
from pipelines.connectors.kafka_records import to_records
from pipelines.records import MAX_RECORD_BYTES, RAW_SCHEMA, UNREADABLE_HEADER

NOON_MS = 1_767_960_000_000


def message(offset: int, value: bytes = b"{}", milliseconds: int = NOON_MS) -> Message:
    return Message(topic="t", partition=2, offset=offset, value=value, key=b"k", timestamp=(TIMESTAMP_CREATE_TIME, milliseconds))


def test_a_time_in_microseconds_stands_at_the_end_of_time_beside_an_oversize_record() -> None:
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


def fail_at(monkeypatch: pytest.MonkeyPatch, poison: set[int], error: Exception) -> None:
    """The client fails for messages at these offsets, alone or among others."""
    read = kafka_records._records

    def failing(messages: list[Message], *more: Any) -> pa.Table:
        if poison & {m.offset() for m in messages}:
            raise error
        return read(messages, *more)

    monkeypatch.setattr(kafka_records, "_records", failing)


def test_messages_that_the_client_cannot_give_are_found_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_bug_of_the_client_that_looks_for_a_file_is_the_messages_and_no_error_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, {1}, FileNotFoundError(2, "No such file or directory"))
    rows = to_records([message(0), message(1), message(2)], 2).to_pylist()
    assert [row["offset"] for row in rows if row["oversize"]] == [1]
