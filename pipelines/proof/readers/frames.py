"""Raw frames as batches of records, for the reference: positions, coordinates, arrivals and bytes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.nats.client import JetStream, fetch_whole
from pipelines.process.arrivals import Arrived, arrivals
from pipelines.proof.verification.reference import FRAME_SCHEMA
from pipelines.protocol.bodies import ClockReset
from pipelines.protocol.naming import Names, is_redriven, source_of_subject
from pipelines.protocol.positions import ORDINAL_BITS
from pipelines.protocol.records import decode_columns
from pipelines.types.vectors import one_chunk

_HISTORY = (("sink", pa.string()), ("refused_row", pa.uint32()))
_BATCH_RECORDS = 20_000
_BATCH_BYTES = 16 * 1024 * 1024


def read_batches(
    log: JetStream,
    names: Names,
    first: int,
    last: int,
    first_us: int,
    resets: Sequence[ClockReset],
    see: Callable[[Arrived], None],
    parts: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the raw frames from `first` to `last`, both inclusive, that exist, as batches of FRAME_SCHEMA.

    `first_us`: the arrival of frame `first`. Later arrivals follow from the times that the server has noted, and from `resets`. `see` is
    called with each frame. `parts`: which of key, headers and timestamp are read.
    """
    messages = fetch_whole(log, names.stream("raw"), names.subjects("raw"), first - 1, last)
    return _in_batches(batch_of(frame, parts) for frame in _seen(arrivals(messages, first_us, resets), see) if frame.message.rows)


def _seen(frames: Iterable[Arrived], see: Callable[[Arrived], None]) -> Iterator[Arrived]:
    for frame in frames:
        see(frame)
        yield frame


def batch_of(frame: Arrived, parts: Collection[str]) -> pa.RecordBatch:
    """Return the records of a frame as FRAME_SCHEMA; only the columns that the reference needs are decoded."""
    message, has_history = frame.message, is_redriven(frame.message.subject)
    names = ("value", "partition", "offset", "oversize", *parts, *(("past_dedup", "sink", "refused_row") if has_history else ()))
    table = decode_columns(message.payload, names)
    rows = table.num_rows
    positions = (np.uint64(message.sequence) << np.uint64(ORDINAL_BITS)) | np.arange(rows, dtype=np.uint64)
    oversize = table.column("oversize")
    is_oversize = np.zeros(rows, dtype=bool) if oversize.null_count == rows else pc.is_valid(oversize).to_numpy()
    is_past = pc.fill_null(table.column("past_dedup"), False).to_numpy() if has_history else np.zeros(rows, dtype=bool)
    columns = [
        pa.array(positions),
        table.column("partition").combine_chunks(),
        table.column("offset").combine_chunks(),
        pa.array(np.full(rows, frame.arrival_us, dtype=np.int64)),
        table.column("value").combine_chunks(),
        *(_part(table, name) for name in ("key", "headers", "timestamp")),
        pa.array(is_oversize),
        pa.array(is_past),
        *(one_chunk(table.column(name)) if has_history else pa.nulls(rows, kind) for name, kind in _HISTORY),
        pa.repeat(source_of_subject(message.subject), rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)


def _part(table: pa.Table, name: str) -> pa.Array:
    """Return a part of the records in its type of FRAME_SCHEMA; null where it was not read."""
    kind = FRAME_SCHEMA.field("timestamp_us" if name == "timestamp" else name).type
    if name not in table.column_names:
        return pa.nulls(table.num_rows, kind)
    column = one_chunk(table.column(name))
    # DuckDB reads no map with a name twice.
    return column.cast(kind) if name != "key" else column


def _in_batches(frames: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small frames until a batch is worth a step of the engine."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for frame in frames:
        held.append(frame)
        rows, size = rows + frame.num_rows, size + frame.nbytes
        if rows >= _BATCH_RECORDS or size >= _BATCH_BYTES:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
