import gzip
import zlib
from collections.abc import Callable

import lz4.frame
import pyarrow as pa
import pytest
import zstandard

from resources.local.clickhouse.formats import Encoder, UnknownEncodingError, content_type, decoded, joiner, response_encoding

ENCODE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "lz4": lz4.frame.compress,
    "zstd": zstandard.compress,
}
PLAIN = b"some rows, " * 5000


def pieces(body: bytes, size: int = 100) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


@pytest.mark.parametrize("encoding", ENCODE)
def test_body_of_one_or_several_frames_is_decoded(encoding: str) -> None:
    frame = ENCODE[encoding](PLAIN)
    assert b"".join(decoded(pieces(frame), encoding)) == PLAIN
    assert b"".join(decoded(pieces(frame + frame), encoding)) == PLAIN * 2
    assert b"".join(decoded([frame + frame], encoding)) == PLAIN * 2


@pytest.mark.parametrize("encoding", ENCODE)
@pytest.mark.parametrize("damage", [lambda body: body[:-9], lambda body: b"x" + body, lambda body: body + b"tail of the body"])
def test_damaged_body_is_refused(encoding: str, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError, match=encoding):
        b"".join(decoded(pieces(damage(ENCODE[encoding](PLAIN))), encoding))


def test_unknown_encoding_is_refused_before_the_body_is_read() -> None:
    with pytest.raises(UnknownEncodingError):
        decoded([], "rot13")


@pytest.mark.parametrize("encoding", ["gzip", "lz4", "zstd"])
def test_each_encoded_piece_can_be_read_as_soon_as_it_arrives(encoding: str) -> None:
    encoder = Encoder(encoding)
    first, second = encoder.encode(b"first"), encoder.encode(b"second")
    decoder = {"gzip": lambda: zlib.decompressobj(31), "lz4": lz4.frame.LZ4FrameDecompressor}.get(
        encoding, lambda: zstandard.ZstdDecompressor().decompressobj()
    )()
    assert decoder.decompress(first) == b"first"
    assert decoder.decompress(second) == b"second"
    decoder.decompress(encoder.finish())
    assert decoder.eof


def test_cheapest_accepted_encoding_is_taken() -> None:
    assert response_encoding("gzip, deflate, zstd;q=0.5, lz4") == "lz4"
    assert response_encoding("br, gzip") == "gzip"
    assert response_encoding("") == response_encoding("identity") == ""


@pytest.mark.parametrize(
    ("name", "blocks", "expected"),
    [
        ("TSV", [b"1\n", b"2\n", b""], b"1\n2\n"),
        ("CSVWithNames", [b'"a\nb"\n1\n', b'"a\nb"\n2\n'], b'"a\nb"\n1\n2\n'),
        ("TSVWithNamesAndTypes", [b"a\nInt8\n1\n", b"a\nInt8\n2\n"], b"a\nInt8\n1\n2\n"),
        ("JSONCompactEachRowWithNames", [b'["a"]\n[1]\n', b'["a"]\n[2]\n'], b'["a"]\n[1]\n[2]\n'),
    ],
)
def test_blocks_are_joined_under_one_header(name: str, blocks: list[bytes], expected: bytes) -> None:
    found = joiner(name)
    assert found is not None
    assert b"".join(found.join(block) for block in blocks) + found.finish() == expected


def test_arrow_blocks_become_one_stream() -> None:
    tables = [pa.table({"a": [1, 2]}), pa.table({"a": [3]})]
    found = joiner("ArrowStream")
    assert found is not None
    joined = b""
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        joined += found.join(sink.getvalue().to_pybytes())
    assert pa.ipc.open_stream(joined + found.finish()).read_all() == pa.concat_tables(tables)


@pytest.mark.parametrize("name", ["JSON", "Parquet", "Arrow", "PrettyCompact", "Values", "RowBinaryWithNames", "XML"])
def test_formats_that_cannot_be_joined_are_not_streamed(name: str) -> None:
    assert joiner(name) is None


def test_content_types() -> None:
    assert content_type("TSVWithNames").startswith("text/tab-separated-values")
    assert content_type("JSONCompact").startswith("application/json")
    assert content_type("JSONEachRow").startswith("application/x-ndjson")
    assert content_type("Native") == "application/octet-stream"
