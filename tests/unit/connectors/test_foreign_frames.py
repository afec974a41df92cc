"""What somebody else may publish on the streams: no bytes of theirs are believed, and each ends in a halt that names the frame."""

import base64
import json
import struct
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import HaltError
from pipelines.process.arrivals import records_of
from pipelines.protocol.bodies import PROCESS_CHAIN, ProcessPlan
from pipelines.protocol.frame_sizes import declared_bytes
from pipelines.protocol.ledger import FORMAT, Entry
from pipelines.protocol.records import (
    HEADER_TOPIC,
    HISTORY_SCHEMA,
    MAX_DECODED_BYTES,
    RAW_SCHEMA,
    Message,
    decode_columns,
    decode_frame,
    encode_frame,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
RECORD = {"key": b"k", "value": b"value", "headers": [], "partition": 0, "offset": 0, "timestamp": NOW, "oversize": None}
GOOD = pa.Table.from_pylist([{**RECORD, "offset": number} for number in range(3)], RAW_SCHEMA)


def message(payload: bytes, **headers: str) -> Message:
    return Message("tf.orders.raw.0", 17, NOW, payload, headers or {HEADER_TOPIC: "orders"})


def stream(table: pa.Table, compression: str | None = "lz4") -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def with_offsets(offsets: list[int], data: bytes = b"01234567", kind: pa.DataType | None = None) -> pa.Table:
    """A table whose `value` points where `offsets` say, which no writer of Arrow would make."""
    rows = len(offsets) - 1
    buffers = [None, pa.py_buffer(struct.pack(f"<{len(offsets)}i", *offsets)), pa.py_buffer(data)]
    value = pa.Array.from_buffers(kind or pa.binary(), rows, buffers)
    columns = {name: GOOD.column(name).slice(0, rows) for name in GOOD.column_names}
    return pa.table({**columns, "value": value})


def patched(offsets: list[int], others: list[int]) -> bytes:
    """What Arrow's own writer refuses to write."""
    before, after = (struct.pack("<3i", *numbers) for numbers in (offsets, others))
    payload = stream(with_offsets(offsets), None)
    assert payload.count(before) == 1
    return payload.replace(before, after)


FOREIGN: dict[str, Callable[[], bytes]] = {
    "garbage": lambda: b"not a frame",
    "nothing": lambda: b"",
    "cut off": lambda: encode_frame(GOOD)[:-40],
    "cut off in its head": lambda: encode_frame(GOOD)[:40],
    "an offset beyond the buffer": lambda: stream(with_offsets([0, 2_000_000, 8]), None),
    "an offset beyond the buffer, compressed": lambda: stream(with_offsets([0, 2_000_000, 8])),
    "the last offset beyond the buffer": lambda: patched([0, 4, 8], [0, 4, 2_000_000]),
    "offsets that decrease": lambda: stream(with_offsets([0, 8, 4])),
    "a negative offset": lambda: patched([0, 4, 8], [-8, 4, 8]),
    "text that is not UTF-8": lambda: stream(with_offsets([0, 1, 2], b"\xff\xfe", pa.string())),
    "a bomb": lambda: stream(pa.table({"value": [b"\0" * (MAX_DECODED_BYTES + 1)]})),
    "compressed with zstd": lambda: stream(GOOD, "zstd"),
    "a column too few": lambda: encode_frame(GOOD.drop_columns(["oversize"])),
    "a column of another type": lambda: encode_frame(GOOD.set_column(4, "offset", GOOD["offset"].cast(pa.string()))),
    "a column too many": lambda: encode_frame(GOOD.append_column("more", GOOD["key"])),
    "a column twice": lambda: encode_frame(GOOD.append_column("key", GOOD["key"])),
}


@pytest.mark.parametrize("frame", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_frame_is_a_halt_that_names_it(frame: Callable[[], bytes]) -> None:
    with pytest.raises(HaltError, match=r"decoding tf\.orders\.raw\.0 at 17: (?s:.*)only Tallyflow may write to its streams"):
        records_of(message(frame()), 0)


def test_a_frame_without_its_topic_is_a_halt() -> None:
    with pytest.raises(HaltError, match="it has no header Tf-Topic"):
        records_of(message(encode_frame(GOOD), other="x"), 0)


def test_frames_of_ours_pass_with_and_without_a_history() -> None:
    assert records_of(message(encode_frame(GOOD)), 0).num_rows == 3
    again = GOOD
    for field in HISTORY_SCHEMA:
        again = again.append_column(field, pa.nulls(3, field.type))
    assert set(HISTORY_SCHEMA.names) <= set(records_of(message(encode_frame(again)), 0).column_names)


def test_single_columns_are_believed_no_more() -> None:
    with pytest.raises(HaltError, match="decoding letters at 3: "):
        decode_columns(stream(with_offsets([0, 2_000_000, 8])), ["value"], "letters at 3")
    with pytest.raises(HaltError, match="uncompressed"):
        decode_columns(FOREIGN["a bomb"](), ["value"])
    with pytest.raises(KeyError, match="none"):
        decode_columns(encode_frame(GOOD), ["none"])


@pytest.mark.parametrize("table", [GOOD, GOOD.slice(0, 0), pa.table({"city": pa.array(["Lyon"] * 4000).dictionary_encode()})])
@pytest.mark.parametrize("compression", ["lz4", None])
def test_the_declared_bytes_are_those_of_the_buffers(table: pa.Table, compression: str | None) -> None:
    read = pa.ipc.open_stream(stream(table, compression)).read_all()
    padding = 64 * 8 * max(1, table.num_columns)
    assert read.nbytes - padding <= declared_bytes(stream(table, compression)) <= read.nbytes + padding


@given(st.data())
def test_a_changed_frame_is_read_or_refused(data: st.DataObject) -> None:
    payload = bytearray(encode_frame(GOOD))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert stream(decode_frame(bytes(payload)))
    except HaltError as error:
        assert "only Tallyflow may write" in str(error)


ENTRY = {"format": FORMAT, "kind": "plan", "epoch": 3, "previous_done": 2, "open_plan": 0, "start": 1, "to": 4, "config": "v1"}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"{",
        b"[]",
        b"[" * 100_000,
        b"7",
        base64.b64encode(b"x"),
        json.dumps({**ENTRY, "kind": 7}).encode(),
        json.dumps({**ENTRY, "epoch": "3"}).encode(),
        json.dumps({**ENTRY, "epoch": -1}).encode(),
        json.dumps({**ENTRY, "epoch": True}).encode(),
        json.dumps({**ENTRY, "previous_done": 17}).encode(),
        json.dumps({**ENTRY, "previous_done": None}).encode(),
        json.dumps({**ENTRY, "open_plan": -1}).encode(),
        json.dumps({name: value for name, value in ENTRY.items() if name != "open_plan"}).encode(),
    ],
    ids=range(15),
)
def test_a_foreign_entry_of_the_ledger_is_a_halt_that_names_it(payload: bytes) -> None:
    with pytest.raises(HaltError, match=r"reading tf\.orders\.raw\.0 at 17: no entry of a ledger .*only Tallyflow may write"):
        PROCESS_CHAIN.decode(message(payload))
    assert PROCESS_CHAIN.decode(message(json.dumps(ENTRY).encode())) == Entry(3, ProcessPlan(start=1, to=4, config="v1"), 2, 0, 17)
