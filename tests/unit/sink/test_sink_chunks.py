"""The sink stage: frames to chunks."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelines.sink.chunks
from pipelines.protocol.frame_sizes import declared_bytes
from pipelines.protocol.records import Message, encode_frame
from pipelines.sink.chunks import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS, Chunk
from pipelines.testing import FIRST_INSTANT


def message(sequence: int, rows: int, payload: bytes = b"x", config: str = "a") -> Message:
    return Message("tf.p.out.0", sequence, FIRST_INSTANT, payload, {"Tf-Rows": str(rows), "Tf-Config": config})


def chunks(messages: list[Message], max_rows: int = MAX_CHUNK_ROWS, max_bytes: int = MAX_CHUNK_BYTES) -> Iterator[Chunk]:
    """Of messages whose payload is no frame: a byte is a byte."""
    return pipelines.sink.chunks.chunks(messages, max_rows, max_bytes, len)


def bounds(found: list[Chunk]) -> list[tuple[int, int, int]]:
    return [(chunk.first, chunk.last, chunk.rows) for chunk in found]


def test_frames_are_gathered_up_to_the_row_limit() -> None:
    found = list(chunks([message(n, 3) for n in range(1, 6)], max_rows=6))
    assert bounds(found) == [(1, 2, 6), (3, 4, 6), (5, 5, 3)]


def test_frames_are_gathered_up_to_the_byte_limit() -> None:
    found = list(chunks([message(n, 1, b"12345") for n in range(1, 6)], max_bytes=10))
    assert bounds(found) == [(1, 2, 2), (3, 4, 2), (5, 5, 1)]


def test_one_frame_over_the_limits_is_a_chunk_of_its_own() -> None:
    found = list(chunks([message(1, 1), message(2, 99, b"x" * 99), message(3, 1)], max_rows=10, max_bytes=10))
    assert bounds(found) == [(1, 1, 1), (2, 2, 99), (3, 3, 1)]


def test_a_chunk_has_the_rows_of_one_configuration() -> None:
    versions = [("a", 1), ("a", 1), ("b", 1), ("b", 1), ("a", 1)]
    found = list(chunks([message(n, rows, config=config) for n, (config, rows) in enumerate(versions, 1)]))
    assert bounds(found) == [(1, 2, 2), (3, 4, 2), (5, 5, 1)]
    assert [chunk.configs for chunk in found] == [{"a"}, {"b"}, {"a"}]


def test_frames_without_rows_cut_nothing() -> None:
    versions = [("", 0), ("a", 1), ("", 0), ("b", 0), ("a", 1), ("b", 1)]
    found = list(chunks([message(n, rows, config=config) for n, (config, rows) in enumerate(versions, 1)]))
    assert bounds(found) == [(1, 5, 2), (6, 6, 1)]


def test_no_frames_give_no_chunk() -> None:
    assert list(chunks([])) == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=40), st.integers(1, 20), st.integers(1, 20))
def test_chunks_hold_every_frame_once_and_keep_the_limits(sizes: list[tuple[int, int]], max_rows: int, max_bytes: int) -> None:
    messages = [message(n, rows, b"x" * size) for n, (rows, size) in enumerate(sizes, 1)]
    found = list(chunks(messages, max_rows, max_bytes))
    assert [m for chunk in found for m in chunk.messages] == messages
    for chunk in found:
        size = sum(len(m.payload) for m in chunk.messages)
        assert len(chunk.messages) == 1 or (chunk.rows <= max_rows and size <= max_bytes)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 20))
def test_a_chunk_read_alone_is_the_same_chunk(rows: list[int], max_rows: int) -> None:
    """A plan is finished after a restart from its bounds alone."""
    messages = [message(n, count) for n, count in enumerate(rows, 1)]
    for chunk in chunks(messages, max_rows):
        assert list(chunks(messages[chunk.first - 1 : chunk.last], max_rows)) == [chunk]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=30), max_size=30), st.booleans(), st.booleans())
def test_what_a_frame_takes_is_told_without_decoding_it(texts: list[str], is_compressed: bool, is_coded: bool) -> None:
    column = pa.array([*texts, None], pa.string())
    table = pa.table({"text": column.dictionary_encode() if is_coded else column, "n": pa.array([[1, 2]] * (len(texts) + 1))})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4" if is_compressed else None)) as writer:
        writer.write_table(table)
    reported = declared_bytes(out.getvalue().to_pybytes())
    # Uncompressed, bitmaps and offsets are padded.
    assert table.nbytes - 64 <= reported <= table.nbytes + 64 * 8


@pytest.mark.parametrize("payload", [b"garbage" * 10, encode_frame(pa.table({"id": [1]}))[:200]])
def test_what_is_no_frame_has_no_size(payload: bytes) -> None:
    with pytest.raises((pa.ArrowInvalid, OSError)):
        declared_bytes(payload)


def test_the_digest_names_the_rows() -> None:
    one = Chunk((message(1, 1, b"a"), message(2, 1, b"b")))
    assert one.digest == Chunk((message(1, 1, b"a"), message(2, 1, b"b"))).digest
    assert one.digest != Chunk((message(1, 1, b"a"), message(2, 1, b"c"))).digest
    assert one.digest != Chunk((message(1, 1, b"b"), message(2, 1, b"a"))).digest
    assert len(one.digest) == 16
