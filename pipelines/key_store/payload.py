"""Typed columns beside the entries of a segment: how they are stored, and how rows of several segments are gathered.

A stored column has the type of its field, but for texts and bytes, which have 64-bit offsets: a segment may hold more than 2 GiB of them.
Its buffers are columns of the segment's file as they are, so a row is read from the memory map without being decoded.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.key_store.index import Rows
from pipelines.key_store.segment_file import Piece
from pipelines.types.vectors import one_chunk

_BITS_PER_BYTE = 8
_ROW_BITS = 40
_ROW_MASK = (1 << _ROW_BITS) - 1
NO_ROW = -1

Taker = Callable[[Rows], pa.RecordBatch]
"""Returns the stored columns of rows, given in ascending order."""


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is stored. Raise TypeError for a type that cannot be."""
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.large_binary()
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return kind
    raise TypeError(f"a column of type {kind} cannot be stored beside a key")


def stored_schema(fields: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, stored_type(field.type)) for field in fields])


def to_text(fields: pa.Schema) -> bytes:
    """Return the names and types of fields, as a segment's file names them."""
    return json.dumps([[field.name, str(field.type)] for field in fields]).encode()


def to_stored(columns: pa.Table, fields: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `fields` as they are stored."""
    arrays = [one_chunk(columns.column(name)) for name in fields.names]
    schema = stored_schema(fields)
    plain = [array.dictionary_decode() if pa.types.is_dictionary(array.type) else array for array in arrays]
    return pa.record_batch([array.cast(kind) for array, kind in zip(plain, schema.types, strict=True)], schema=schema)


def from_stored(batch: pa.RecordBatch, fields: pa.Schema) -> list[pa.Array]:
    """Return stored columns in the types of their fields."""
    return [_restored(column, field.type) for column, field in zip(batch.columns, fields, strict=True)]


def _restored(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.cast(kind.value_type).dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else column.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _is_bits(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind))


def piece_names(schema: pa.Schema) -> tuple[str, ...]:
    """Return the names of the columns in a segment's file."""
    return tuple(f"payload.{number}.{part}" for number, kind in enumerate(schema.types) for part in _parts(kind))


def _parts(kind: pa.DataType) -> tuple[str, ...]:
    return ("valid", "offsets", "values") if _is_text(kind) else ("valid", "values")


def to_pieces(batch: pa.RecordBatch) -> list[Piece]:
    """Return the buffers of stored columns, in the order of `piece_names`."""
    return [piece for column in batch.columns for piece in _pieces(pa.concat_arrays([column, column.slice(0, 0)]))]


def _pieces(column: pa.Array) -> Iterator[Piece]:
    """Yield the buffers of a column that begins at their start."""
    rows = len(column)
    valid, *contents = column.buffers()
    yield _bits(valid if column.null_count else None, rows)
    if _is_text(column.type):
        offsets = np.frombuffer(contents[0], dtype=np.int64, count=rows + 1)
        yield _offsets_piece(offsets)
        yield _text_piece(offsets, contents[1])
    elif _is_bits(column.type):
        yield _bits(contents[0], rows)
    else:
        yield Piece.of(np.frombuffer(contents[0] or b"", dtype=f"V{column.type.bit_width // _BITS_PER_BYTE}")[:rows])


def _bits(content: pa.Buffer | None, rows: int) -> Piece:
    if content is None:
        return Piece(np.zeros(0, dtype=np.uint8), _block_rows(rows) * 0)
    return Piece.of(np.frombuffer(content, dtype=np.uint8, count=-(-rows // _BITS_PER_BYTE)), _BITS_PER_BYTE)


def _block_rows(rows: int) -> Rows:
    """Return the first row of each block, and the number of rows."""
    return Piece.of(np.zeros(rows, dtype=np.uint8)).borders


def _offsets_piece(offsets: Rows) -> Piece:
    """Return the piece of n + 1 offsets of n rows: the last block holds the end as well."""
    borders = _block_rows(len(offsets) - 1) * offsets.itemsize
    borders[-1] += offsets.itemsize
    return Piece(offsets.view(np.uint8), borders)


def _text_piece(offsets: Rows, content: pa.Buffer | None) -> Piece:
    borders = offsets[_block_rows(len(offsets) - 1)]
    return Piece(np.frombuffer(content or b"", dtype=np.uint8)[: borders[-1]], borders)


def from_buffers(schema: pa.Schema, rows: int, contents: Sequence[pa.Buffer | None]) -> tuple[pa.RecordBatch, list[Piece]]:
    """Return the stored columns over the buffers of a file, and their pieces.

    Nothing is copied. Raise ValueError for a buffer that is too short.
    """
    left = list(contents)
    columns, pieces = [], []
    for kind in schema.types:
        buffers = [left.pop(0) for _ in _parts(kind)]
        columns.append(pa.Array.from_buffers(kind, rows, [buffers[0] or None, *(buffer or pa.py_buffer(b"") for buffer in buffers[1:])]))
        pieces += _opened(kind, rows, buffers)
    return pa.RecordBatch.from_arrays(columns, schema=schema), pieces


def _opened(kind: pa.DataType, rows: int, buffers: Sequence[pa.Buffer | None]) -> list[Piece]:
    valid = _bits(buffers[0] or None, rows)
    if _is_text(kind):
        offsets = np.frombuffer(buffers[1] or b"", dtype=np.int64, count=rows + 1)
        return [valid, _offsets_piece(offsets), _text_piece(offsets, buffers[2])]
    if _is_bits(kind):
        return [valid, _bits(buffers[1], rows)]
    return [valid, Piece.of(np.frombuffer(buffers[1] or b"", dtype=f"V{kind.bit_width // _BITS_PER_BYTE}", count=rows))]


def row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes of each row of stored columns, without what marks nulls."""
    sizes = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        if _is_text(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
        else:
            sizes += -(-column.type.bit_width // _BITS_PER_BYTE)
    return sizes


@dataclass(frozen=True)
class Gathered:
    """Stored columns of the distinct rows that were asked for, and where each asked row is among them, NO_ROW for none."""

    batch: pa.RecordBatch
    at: Rows

    def rows(self, asked: slice) -> pa.RecordBatch:
        """Return the asked rows in their order; all columns are null for none."""
        at = self.at[asked]
        if len(at) == self.batch.num_rows and (at == np.arange(len(at))).all():
            return self.batch
        is_none = at == NO_ROW
        return self.batch.take(pa.array(at, mask=is_none) if is_none.any() else pa.array(at))

    def row_bytes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of each asked row."""
        return np.append(row_bytes(self.batch), 0)[self.at]


def gather(takers: Sequence[Taker], source: Rows, row: Rows, schema: pa.Schema) -> Gathered:
    """Take rows, each of the source with its number; `source` is NO_ROW for none. A row that is asked for often is read once."""
    asked = np.where(source == NO_ROW, NO_ROW, source << _ROW_BITS | row)
    distinct, at = np.unique(asked, return_inverse=True)
    if len(distinct) and distinct[0] == NO_ROW:
        distinct, at = distinct[1:], at - 1
    sources = distinct >> _ROW_BITS
    borders = np.searchsorted(sources, np.arange(len(takers) + 1))
    parts = [
        take(distinct[start:end] & _ROW_MASK) for take, start, end in zip(takers, borders[:-1], borders[1:], strict=True) if start < end
    ]
    # Not `empty_table`, which imports pandas.
    nothing = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
    return Gathered(parts[0] if len(parts) == 1 else pa.concat_batches([nothing, *parts]), at)
