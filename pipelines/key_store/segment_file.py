"""The file of a segment: an immutable Arrow IPC file of one batch, with checksums, memory-mapped for reading.

The batch has one row of binary values, each the bytes of a column. Its metadata holds `run`, which is JSON, and `crc`, the CRC-32 of every
BLOCK_ROWS rows of every column that has a value per row; `run` holds those of the index. The digest in the ledger covers this metadata:
opening a segment checks the digest and the index, the first touch of a block checks the block.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.errors import StateDamagedError
from pipelines.key_store.index import Rows
from pipelines.key_store.storage import Header, Storage

BLOCK_ROWS = 64 * 1024
_UNREADABLE = (OSError, pa.ArrowException, IndexError, ValueError)
"""Errors of Arrow for a file that is not valid any more."""
REMEDY = "nothing was written; stop the pipeline and rebuild the store from the raw stream with `tallyflow rebuild-state`"

Column = npt.NDArray[Any]
Checksums = npt.NDArray[np.uint32]


def block_count(rows: int) -> int:
    return -(-rows // BLOCK_ROWS)


@dataclass(frozen=True)
class Piece:
    """The bytes of a column, and the places in them where each block of rows begins, followed by their end."""

    content: Column
    borders: Rows

    @classmethod
    def of(cls, column: Column, rows_per_item: int = 1) -> "Piece":
        """Build the piece of a column with one item per row, or per `rows_per_item` rows, which divides BLOCK_ROWS."""
        starts = np.arange(0, len(column), BLOCK_ROWS // rows_per_item, dtype=np.int64)
        return cls(column.view(np.uint8), np.append(starts, len(column)) * column.itemsize)

    def blocks(self) -> Iterator[Column]:
        return (self.block(number) for number in range(len(self.borders) - 1))

    def block(self, number: int) -> Column:
        return self.content[self.borders[number] : self.borders[number + 1]]


class Blocks:
    """Blocks of pieces that are compared with their checksums when they are touched first. Not thread-safe."""

    def __init__(self, where: str, pieces: Sequence[Piece], crc: Checksums | None) -> None:
        """Guard the pieces. `crc`: the checksums by piece and block; None to trust the pieces."""
        self._where, self._pieces = where, pieces
        self._crc = crc if crc is not None else np.zeros((len(pieces), 0), dtype=np.uint32)
        self.unchecked = self._crc.shape[1]
        self._is_checked = np.zeros(self.unchecked, dtype=bool)

    def check(self, rows: Rows) -> None:
        """Compare the checksum of every block that `rows` touch for the first time. Raise StateDamagedError for a damaged one."""
        if self.unchecked:
            is_touched = np.zeros(len(self._is_checked), dtype=bool)
            is_touched[rows // BLOCK_ROWS] = True
            self._compare(np.flatnonzero(is_touched & ~self._is_checked))

    def check_all(self) -> None:
        """Compare the checksums of all blocks. Raise StateDamagedError for a damaged one."""
        if self.unchecked:
            self._compare(np.flatnonzero(~self._is_checked))

    def _compare(self, blocks: npt.NDArray[np.intp]) -> None:
        for block in blocks.tolist():
            if not np.array_equal([zlib.crc32(piece.block(block).data) for piece in self._pieces], self._crc[:, block]):
                rows = f"rows {block * BLOCK_ROWS} to {(block + 1) * BLOCK_ROWS}"
                raise StateDamagedError(f"reading state run {self._where}: {rows} are damaged; {REMEDY}")
            self._is_checked[block] = True
        self.unchecked = int(np.count_nonzero(~self._is_checked))


@dataclass(frozen=True)
class Layout:
    """The columns of a segment's file in their order, and `number`, the format that its header names.

    `rows`: with a value per row; `index`: the rest. `facts`: further metadata that the digest covers.
    """

    number: int
    rows: tuple[str, ...]
    index: tuple[str, ...]
    facts: Header

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, pa.large_binary()) for name in (*self.rows, *self.index)])


@dataclass(frozen=True)
class OpenFile:
    """The bytes of each column of an open file, None for an empty one, and the checksums by column and block."""

    contents: Mapping[str, pa.Buffer | None]
    crc: Checksums


def write_file(storage: Storage, name: str, layout: Layout, rows: int, contents: Sequence[Piece | Column]) -> str:
    """Write the columns of a layout, those with a value per row as pieces, as a new file; return its digest.

    The file is durable on return. Raise FileExistsError if the name is taken.
    """
    pieces = [content for content in contents if isinstance(content, Piece)]
    index = [content for content in contents if not isinstance(content, Piece)]
    facts = {"format": layout.number, "rows": rows, "block_rows": BLOCK_ROWS, "index_crc": [zlib.crc32(column.data) for column in index]}
    checksums = np.array([zlib.crc32(block.data) for piece in pieces for block in piece.blocks()], dtype=np.uint32)
    header = {b"run": json.dumps(facts, sort_keys=True).encode(), b"crc": checksums.tobytes(), **layout.facts}
    storage.write(name, _one_row(layout, [*(piece.content for piece in pieces), *index]), header)
    return _digest(header, layout)


def open_file(storage: Storage, name: str, digest: str, layout: Layout, rows: int, is_own: bool) -> OpenFile:
    """Map the file. Raise StateDamagedError if it is missing, has another layout, or is not the file with this digest.

    `is_own`: this process has just written the file, so its index needs no check.
    """
    where = f"{storage.path}/{name}"
    try:
        batch, header = storage.read(name)
        found_format = json.loads(header.get(b"run", b"{}")).get("format")
        if found_format not in (None, layout.number):
            wrong = f"it is of format {found_format}, and this release reads {layout.number}"
            raise StateDamagedError(f"opening state run {where}: {wrong}; {REMEDY}")
        # The batch's own header has no checksum: a flipped bit there may invent nulls or hide the batch.
        is_ours = header.keys() >= {b"run", b"crc", *layout.facts} and _digest(header, layout) == digest
        if is_ours and any(header[part] != content for part, content in layout.facts.items()):
            raise StateDamagedError(f"opening state run {where}: its rows have other fields than the pipeline stores; {REMEDY}")
        is_ours = is_ours and batch.schema.equals(layout.schema)
        contents = {column: batch.column(column).buffers()[2] for column in layout.schema.names} if is_ours else {}
        crc = np.frombuffer(header[b"crc"], dtype=np.uint32).reshape(len(layout.rows), block_count(rows)) if is_ours else None
    except _UNREADABLE as error:
        raise StateDamagedError(f"opening state run {where}: {error}; {REMEDY}") from error
    if crc is None:
        raise not_listed(where)
    index_crc = [zlib.crc32(contents[column] or b"") for column in layout.index] if not is_own else None
    if index_crc not in (None, json.loads(header[b"run"])["index_crc"]):
        raise StateDamagedError(f"opening state run {where}: its index is damaged; {REMEDY}")
    return OpenFile(contents, crc)


def not_listed(where: str) -> StateDamagedError:
    """Return the error of a file that is another one than the ledger lists."""
    return StateDamagedError(f"opening state run {where}: it is not the file that the ledger lists; {REMEDY}")


def _one_row(layout: Layout, columns: Sequence[Column]) -> pa.RecordBatch:
    """Build the record batch without copying.

    Readers of Arrow need the offsets; `open_file` does not.
    """
    buffers = [[None, pa.py_buffer(np.array([0, column.nbytes])), pa.py_buffer(column)] for column in columns]
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.large_binary(), 1, each) for each in buffers], schema=layout.schema)


def _digest(header: Header, layout: Layout) -> str:
    found = blake2b(digest_size=16)
    for name in (b"run", b"crc", *layout.facts):
        found.update(header[name])
    return found.hexdigest()
