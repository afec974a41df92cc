"""Frames and positions: the schemas that cross the streams, and the conversion of tables to JetStream messages and back.

A frame is one JetStream message that carries many records as one Arrow IPC stream of one record batch (lz4). Its headers name the positions
that it covers, so that a writer can resume, and a reader can plan, without decoding it.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from pipelines.errors import HaltError
from pipelines.protocol.frame_sizes import declared_bytes
from pipelines.protocol.stream_limits import MAX_CONTENT_BYTES, MAX_FRAME_BYTES
from pipelines.types.row_sizes import row_bytes
from pipelines.types.vectors import Numbers, empty_batch, of_these_rows
from pipelines.without_pandas import empty_table

MAX_RECORD_BYTES = 1_000_000
"""A record whose key, value and headers are larger together travels as head and digest only, and parse rejects it.

Kafka's client in C sends no larger one by default (`message.max.bytes`). A header counts 11 bytes more than its name and value: a frame
holds where they lie.
"""
OVERSIZE_HEAD_BYTES = 1024
MAX_DECODED_BYTES = 256 * MAX_FRAME_BYTES
"""Limit of a frame, uncompressed: lz4 expands a byte to at most 255."""
UNREADABLE_HEADER = b"tallyflow.unreadable"
"""The only header of a record with `oversize` that is not too large: the client could not read it. Its value is the error's type."""
_TARGET_FRAME_BYTES = 832 * 1024
_FRAME_BYTES, _COLUMN_BYTES, _EMPTY_BYTES = 8 * 1024, 256, 15
# To give each buffer to a thread takes more than four times the CPU of a frame of 40 rows, and a fifth more of one of 5,000.
_WRITING, _READING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False), pa.ipc.IpcReadOptions(use_threads=False)

INSTANT = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HEADERS_TYPE = pa.map_(pa.binary(), pa.binary())
OVERSIZE_TYPE = pa.struct([("bytes", pa.int64()), ("sha256", pa.binary())])
TOPIC_TYPE = pa.dictionary(pa.int32(), pa.string())

RAW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", INSTANT),
        ("oversize", OVERSIZE_TYPE),
    ]
)
"""A raw frame, in offset order.

`oversize` is non-null if `value` is only the first 1024 bytes of a record: it was too large, or has UNREADABLE_HEADER. `timestamp` is null
if Kafka has none; a timestamp outside TIMESTAMPS_MS is replaced by the nearer end of that range.
"""
TIMESTAMPS_MS = (-62_135_596_800_000, 253_402_300_799_999)
"""Years 1 and 9999 to their ends: every reader of a frame can represent them as an instant.

No column type of ClickHouse reaches so far, so a record whose time is at either end is rejected if a column is made of it.
"""

HISTORY_SCHEMA = pa.schema(
    [
        ("attempts", pa.int32()),
        ("first_time", INSTANT),
        ("past_dedup", pa.bool_()),
        ("origin", pa.string()),
        ("sink", pa.string()),
        ("refused_row", pa.uint32()),
    ]
)
"""Columns after RAW_SCHEMA if a raw frame holds redriven dead letters.

They hold the number of the record's rejections, the time of the first, whether dedup has accepted it, the position of the last
rejection, the sink leg that has refused it: the other sinks have their rows of it; and, of a record of several rows, the number of the row
that was refused: its other rows are there. Null if the whole record was rejected.
"""

POSITION_FIELDS = [
    pa.field("_tf_sequence", pa.uint64()),
    pa.field("_tf_ordinal", pa.uint32()),
    pa.field("_tf_topic", TOPIC_TYPE),
    pa.field("_tf_partition", pa.int32()),
    pa.field("_tf_offset", pa.int64()),
    pa.field("_tf_arrival", INSTANT),
]
"""The place of a record: raw stream sequence and ordinal in the frame (its identity), Kafka coordinates, and its arrival."""

EMIT_FIELD = pa.field("_tf_emit", pa.uint32())
REFUSED_ROW_COLUMN = "_tf_refused_row"
"""`refused_row` of HISTORY_SCHEMA on its way to the step that makes several rows of a record."""
POSITION_COLUMN_TYPES = (
    ("_tf_sequence", "UInt64"),
    ("_tf_ordinal", "UInt32"),
    ("_tf_emit", "UInt32"),
    ("_tf_topic", "LowCardinality(String)"),
    ("_tf_partition", "Int32"),
    ("_tf_offset", "Int64"),
    ("_tf_arrival", "DateTime64(6, 'UTC')"),
)
"""The position columns of an out frame, after the sink's own columns, and their types in the table."""
POSITION_COLUMNS = tuple(name for name, _ in POSITION_COLUMN_TYPES)
REJECTED_SCHEMA = pa.schema(
    [
        ("_tf_sequence", pa.uint64()),
        ("_tf_ordinal", pa.uint32()),
        ("stage", pa.string()),
        ("code", pa.string()),
        ("field", pa.string()),
        ("message", pa.string()),
    ]
)
"""One row per rejected record: its position, the stage that rejected it, an error code, the field or column, and the reason."""
_NONE_REJECTED = empty_table(REJECTED_SCHEMA)

HEADER_FIRST = "Tf-First"
HEADER_LAST = "Tf-Last"
HEADER_ROWS = "Tf-Rows"
HEADER_BYTES = "Tf-Bytes"
HEADER_TOPIC = "Tf-Topic"
HEADER_TOPIC_ID = "Tf-Topic-Id"
HEADER_PARTITION = "Tf-Partition"
HEADER_RUN = "Tf-Run"
HEADER_SKIPPED = "Tf-Skipped"
HEADER_OLDEST = "Tf-Oldest"
"""Header of an out frame with rows of a join: no row of it, or of a later frame, is of a raw frame before this sequence."""
HEADER_IDLE = "Tf-Idle"
"""Header of a tick: the partitions that it marks as idle (`protocol.ticks`)."""
HEADER_CONFIG = "Tf-Config"
"""Header of an out frame: the version of the configuration under which its rows were made."""


@dataclass(frozen=True)
class StageOutput:
    """The output of a step: the passed records, the rejected ones (`REJECTED_SCHEMA`), and the numbers of the dropped ones.

    The numbers are by the total of the outcome (`protocol.outcomes`).
    """

    accepted: pa.Table
    rejected: pa.Table
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    """One stored JetStream message. `time` is the server's; it may step back, so use the arrival rule for windows."""

    subject: str
    sequence: int
    time: datetime
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return int(self.headers.get(HEADER_ROWS, "0"))

    @property
    def config(self) -> str:
        """HEADER_CONFIG of an out frame; empty if it has none, such as the marks of a rebucketing."""
        return self.headers.get(HEADER_CONFIG, "")

    @property
    def content_bytes(self) -> int:
        """The decoded size of a frame, without decoding it; 0 for one without rows."""
        return int(self.headers.get(HEADER_BYTES, "0"))


def instant(microseconds: int) -> datetime:
    """Convert microseconds since 1970, the form of arrivals and clocks, to a datetime."""
    return _EPOCH + timedelta(microseconds=microseconds)


def empty_rejected() -> pa.Table:
    return _NONE_REJECTED


def encode_frame(table: pa.Table) -> bytes:
    """Encode the table as one Arrow IPC stream of one record batch, lz4; an empty table gives a schema and an empty batch."""
    batches = of_these_rows(table).combine_chunks().to_batches()
    batch = batches[0] if batches else empty_batch(table.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_WRITING) as writer:
        writer.write_batch(batch)
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def decode_parcel(payload: bytes) -> pa.Table:
    """Return the inverse of `encode_frame` for bytes that a task of this run has encoded and no server has held: they are not checked."""
    with pa.ipc.open_stream(payload, options=_READING) as reader:
        return reader.read_all()


def decode_frame(payload: bytes, what: str = "a frame") -> pa.Table:
    """Decode a frame. Nothing in the bytes is trusted: anyone with the right to publish on the streams can write them.

    Raise HaltError that names `what` for bytes that are no frame: they do not decode, would take more than MAX_DECODED_BYTES uncompressed,
    or point outside their own buffers. `validate(full=True)` takes 5 % of a raw frame's decoding and 33 % of an out frame's.
    """
    with _frames_of_ours_only(what):
        _check_declared(payload)
        with pa.ipc.open_stream(payload, options=_READING) as reader:
            table = reader.read_all()
        table.validate(full=True)
        return table


def decode_columns(payload: bytes, names: Sequence[str], what: str = "a frame") -> pa.Table:
    """Decode these columns of a frame only; the others are not uncompressed. Raise KeyError for a missing column."""
    with _frames_of_ours_only(what):
        _check_declared(payload)
        with pa.ipc.open_stream(payload) as reader:
            indices = [reader.schema.names.index(name) if name in reader.schema.names else -1 for name in names]
    if -1 in indices:
        raise KeyError(names[indices.index(-1)])
    with _frames_of_ours_only(what):
        options = pa.ipc.IpcReadOptions(included_fields=sorted(indices), use_threads=False)
        with pa.ipc.open_stream(payload, options=options) as reader:
            table = reader.read_all().select(list(names))
        table.validate(full=True)
        return table


def describe_frame(message: Message) -> str:
    """Return the name of a stored frame in errors."""
    return f"{message.subject} at {message.sequence}"


def check_columns(table: pa.Table, schema: pa.Schema, optional: pa.Schema, what: str) -> None:
    """Raise HaltError unless the frame has the columns of `schema`, perhaps some of `optional`, no others, each with its type."""
    known = {field.name: field.type for field in (*schema, *optional)}
    wrong = [field.name for field in table.schema if known.get(field.name) != field.type]
    missing = [name for name in schema.names if name not in table.column_names]
    if wrong or missing or len(table.column_names) != len({*table.column_names}):
        names = ", ".join(repr(name[:80]) for name in (wrong + missing or table.column_names)[:5])
        raise _foreign(what, f"its columns are not those of a frame: {names}")


def _check_declared(payload: bytes) -> None:
    declared = declared_bytes(payload)
    if declared > MAX_DECODED_BYTES:
        raise pa.ArrowInvalid(f"it would take {declared} bytes uncompressed, a frame at most {MAX_DECODED_BYTES}")


@contextmanager
def _frames_of_ours_only(what: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowMemoryError:
        # A fault of this host; the size of the frame was checked before.
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _foreign(what, str(error)) from error


def _foreign(what: str, reason: str) -> HaltError:
    return HaltError(
        f"decoding {what}: {reason}; only Tallyflow may write to its streams: see who else may publish there, and restore the stream from "
        "a backup, or delete the pipeline and start it anew"
    )


def cut_frames(table: pa.Table) -> Iterator[tuple[pa.Table, bytes]]:
    """Cut `table`, in order, into (rows, encoded frame) pairs of at most MAX_FRAME_BYTES, and MAX_CONTENT_BYTES, aiming at 832 KiB.

    The place of a cut carries no meaning: two attempts may cut differently. Raise ValueError if a single row does not fit; stages reject
    such rows before (`MAX_RECORD_BYTES`).
    """
    start, rows = 0, _first_guess(table)
    while start < table.num_rows:
        part = table.slice(start, rows)
        if part.nbytes > MAX_CONTENT_BYTES and part.num_rows > 1:
            rows = max(1, min(part.num_rows // 2, part.num_rows * MAX_CONTENT_BYTES // part.nbytes))
            continue
        payload = encode_frame(part)
        if len(payload) > MAX_FRAME_BYTES:
            if part.num_rows == 1:
                raise ValueError(f"one row takes {len(payload)} bytes, a frame holds {MAX_FRAME_BYTES}")
            rows = max(1, min(part.num_rows // 2, int(part.num_rows * _TARGET_FRAME_BYTES / len(payload))))
            continue
        yield part, payload
        start += part.num_rows
        rows = max(1, min(4 * rows, int(part.num_rows * _TARGET_FRAME_BYTES / len(payload))))


@dataclass(frozen=True)
class Framing:
    """How a writer makes frames of rows: `encode` a table as one frame; `cut` it, in order, into (rows, encoded frame) pairs."""

    encode: Callable[[pa.Table], bytes] = encode_frame
    cut: Callable[[pa.Table], Iterator[tuple[pa.Table, bytes]]] = cut_frames


FRAMING = Framing()


def _first_guess(table: pa.Table) -> int:
    """Return the rows of the first frame, assuming that compression halves the size; the second frame corrects it."""
    if table.num_rows == 0:
        return 1
    return max(1, int(2 * _TARGET_FRAME_BYTES * table.num_rows / max(1, table.nbytes)))


def record_bytes(records: pa.Table) -> Numbers:
    """Return the size of each record's key, value and headers in a frame before it is compressed; 0 for one without."""
    return row_bytes(records.select(["key", "value", "headers"])) - _EMPTY_BYTES


def most_row_bytes(schema: pa.Schema) -> int:
    """Return how large a row may be (`types.row_sizes`) to fit into a frame of its own, whatever it compresses to."""
    return MAX_FRAME_BYTES - _FRAME_BYTES - sum(map(_column_bytes, schema))


def _column_bytes(column: pa.Field) -> int:
    """Return a bound of what a frame takes for a column besides its values: its name twice, its type, and where its buffers lie.

    Measured: 180 bytes for a number, 220 for a text, 650 for a list of pairs of a text and a list.
    """
    kind = column.type
    return _COLUMN_BYTES + 2 * len(column.name.encode()) + sum(_column_bytes(kind.field(index)) for index in range(kind.num_fields))


def digest(payload: bytes) -> str:
    """Return the digest of a frame's content in the ledger: 128 bits of BLAKE2b, hex."""
    return hashlib.blake2b(payload, digest_size=16).hexdigest()


def payloads_digest(messages: Iterable[Message]) -> str:
    """Return 64 bits over the bytes of stored messages, hex.

    Stored messages do not change, so it names their content in an insert token.
    """
    state = hashlib.blake2b(digest_size=8)
    for message in messages:
        state.update(message.payload)
    return state.hexdigest()


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables; a column that some of them lack is null there, and each dictionary is one for all rows."""
    return pa.concat_tables(tables, promote_options="default").unify_dictionaries()


def with_positions(frame: pa.Table, sequence: int, topic: str, arrival_us: int) -> pa.Table:
    """Return a decoded raw frame as the input of the stages, in position order.

    Its columns are `key, value, headers, timestamp, oversize` and POSITION_FIELDS; redriven records keep HISTORY_SCHEMA. `arrival_us` is
    the frame's arrival in microseconds since 1970, UTC.
    """
    rows = frame.num_rows
    carried = [name for name in HISTORY_SCHEMA.names if name in frame.column_names]
    columns = {name: frame.column(name) for name in ("key", "value", "headers", "timestamp", "oversize", *carried)}
    positions = {
        "_tf_sequence": pa.array(np.full(rows, sequence, dtype=np.uint64)),
        "_tf_ordinal": pa.array(np.arange(rows, dtype=np.uint32)),
        "_tf_topic": pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), pa.array([topic])),
        "_tf_partition": frame.column("partition"),
        "_tf_offset": frame.column("offset"),
        "_tf_arrival": pa.repeat(pa.scalar(arrival_us, pa.int64()), rows).cast(INSTANT),
    }
    return pa.table({**columns, **positions})
