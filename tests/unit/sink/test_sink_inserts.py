"""An insert of the sink: the frames of a chunk to rows, and rows to one block."""

import pyarrow as pa
import pytest

from pipelines.errors import HaltError, InvariantError
from pipelines.protocol.frame_sizes import declared_bytes
from pipelines.protocol.records import Message, encode_frame
from pipelines.sink.chunks import MAX_CHUNK_BYTES, Chunk, chunks
from pipelines.sink.inserts import chunk_rows, insert_block
from pipelines.testing import FIRST_INSTANT


def frame(sequence: int, table: pa.Table) -> Message:
    headers = {"Tf-Rows": str(table.num_rows), "Tf-Config": "a"}
    return Message("tf.p.out.0", sequence, FIRST_INSTANT, encode_frame(table), headers)


def rows(*ids: int, topic: str = "orders") -> pa.Table:
    topics = pa.DictionaryArray.from_arrays(pa.array([0] * len(ids), pa.int32()), pa.array([topic]))
    return pa.table({"id": pa.array(ids, pa.int64()), "spare": pa.array(ids, pa.int64()), "_tf_topic": topics})


def read(block: bytes) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(block) as reader:
        return list(reader)


def test_rows_packed_250_to_1_are_cut_by_memory_and_all_sent() -> None:
    """5,350 such rows of 430 KiB were one chunk of 9.8 MB and 2.3 GB, and 642 of them in no block."""
    wide = pa.table({"id": pa.array(range(20), pa.int64()), "text": ["a repeated text " * 27_520] * 20})
    messages = [frame(sequence, wide) for sequence in range(1, 41)]
    assert sum(len(one.payload) for one in messages) < 4_000_000
    found = list(chunks(messages))
    assert [chunk.rows for chunk in found] == [300, 300, 200]
    for chunk in found:
        assert sum(declared_bytes(one.payload) for one in chunk.messages) <= MAX_CHUNK_BYTES
        (batch,) = read(insert_block(chunk_rows(chunk, ["id", "text"])))
        assert batch.num_rows == chunk.rows


def test_rows_too_large_for_one_block_are_never_sent_in_part() -> None:
    piece = pa.array(["a repeated text " * 27_520] * 100)
    pieces = [piece] * (2**31 // piece.nbytes + 1)
    with pytest.raises(InvariantError, match="do not fit into one block"):
        insert_block(pa.table({"text": pa.chunked_array(pieces)}))


def test_a_block_is_one_batch_with_the_tables_columns() -> None:
    chunk = Chunk((frame(1, rows(1, 2)), frame(2, rows(3))))
    (batch,) = read(insert_block(chunk_rows(chunk, ["_tf_topic", "id"])))
    assert batch.schema.names == ["_tf_topic", "id"]
    assert batch.to_pylist() == [{"_tf_topic": "orders", "id": n} for n in (1, 2, 3)]


def test_frames_of_several_topics_share_a_block() -> None:
    chunk = Chunk((frame(1, rows(1, topic="orders")), frame(2, rows(2, topic="returns"))))
    (batch,) = read(insert_block(chunk_rows(chunk, ["id", "_tf_topic"])))
    assert [row["_tf_topic"] for row in batch.to_pylist()] == ["orders", "returns"]


def test_empty_frames_add_nothing() -> None:
    chunk = Chunk((frame(1, rows()), frame(2, rows(7)), frame(3, rows())))
    (batch,) = read(insert_block(chunk_rows(chunk, ["id"])))
    assert batch.to_pylist() == [{"id": 7}]


def test_a_chunk_of_empty_frames_is_an_empty_block() -> None:
    (batch,) = read(insert_block(chunk_rows(Chunk((frame(1, rows()), frame(2, rows()))), ["id"])))
    assert batch.num_rows == 0
    assert batch.schema.names == ["id"]


def test_the_same_chunk_gives_the_same_bytes() -> None:
    """ClickHouse's token covers one block; a retry must send the same one."""

    def planned() -> bytes:
        chunk = Chunk((frame(1, rows(1, 2)), frame(2, rows(3, topic="returns"))))
        return insert_block(chunk_rows(chunk, ["id", "_tf_topic"]))

    first = planned()
    assert planned() == first


def test_a_frame_without_a_column_of_the_table_is_an_error() -> None:
    with pytest.raises(HaltError, match="missing"):
        chunk_rows(Chunk((frame(1, rows(1)),)), ["id", "missing"])
