"""Joins ClickHouse's streamed blocks into one stream, and handles the encodings of HTTP bodies.

The engine encodes each streamed block as if it were a whole result; a `Joiner` removes the parts that must not repeat. In: encoded blocks.
Out: bytes of one well-formed result. Formats that cannot be joined (JSON, Parquet, Pretty, ...) are not streamed: `joiner` returns None.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator

import lz4.frame
import zstandard

CONTENT_TYPES = {
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
    "JSON": "application/json; charset=UTF-8",
    "Pretty": "text/plain; charset=UTF-8",
    "XML": "application/xml; charset=UTF-8",
}
_ALIASES = {"TSV": "TabSeparated", "NDJSON": "JSONEachRow", "JSONLines": "JSONEachRow", "RawBLOB": "RawBlob"}
_PLAIN = {"Native", "TabSeparated", "TabSeparatedRaw", "TSVRaw", "CSV", "RowBinary", "JSONEachRow", "JSONCompactEachRow", "TSKV", "Null"}
_ONE_LINE_NAMES = ("TabSeparated", "TSV", "TabSeparatedRaw", "TSVRaw", "JSONCompactEachRow")
_ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_PIECE_BYTES = 1 << 20


def content_type(name: str) -> str:
    """Return the media type of an output format."""
    name = _ALIASES.get(name, name).replace("TSV", "TabSeparated")
    if name in CONTENT_TYPES:
        return CONTENT_TYPES[name]
    for prefix, media_type in CONTENT_TYPES.items():
        if name.startswith(prefix) and name != "JSONEachRowWithProgress":
            return media_type
    return "application/octet-stream"


class Joiner:
    """Removes the header that each block repeats, and with `end` the mark that closes each block."""

    def __init__(self, header_size: Callable[[bytes], int], end: bytes = b"") -> None:
        self._header_size = header_size
        self._header: bytes | None = None
        self._end = end

    def join(self, block: bytes) -> bytes:
        block = block.removesuffix(self._end)
        if self._header is None:
            self._header = block[: self._header_size(block)]
            return block
        return block.removeprefix(self._header)

    def finish(self) -> bytes:
        return self._end


def joiner(name: str) -> Joiner | None:
    """Return a fresh joiner for an output format; None if its blocks cannot be joined."""
    name = _ALIASES.get(name, name)
    if name in _PLAIN:
        return Joiner(lambda block: 0)
    if name == "ArrowStream":
        # The first message is the schema: marker, length of the metadata, metadata, no body (Arrow columnar format, IPC).
        return Joiner(lambda block: 8 + int.from_bytes(block[4:8], "little"), _ARROW_END)
    base, separator, kind = name.partition("WithNames")
    if not separator or kind not in ("", "AndTypes"):
        return None
    lines = 2 if kind else 1
    if base in _ONE_LINE_NAMES and not base.endswith("Raw"):
        return Joiner(lambda block: _lines_size(block, lines, b""))
    return Joiner(lambda block: _lines_size(block, lines, b'"')) if base == "CSV" else None


def _lines_size(block: bytes, lines: int, mark: bytes) -> int:
    """Return the length of the first lines; a line break between two quotation marks does not end a line."""
    end = 0
    for _ in range(lines):
        start = end
        end = block.index(b"\n", start) + 1
        while mark and block.count(mark, start, end) % 2:
            end = block.index(b"\n", end) + 1
    return end


class UnknownEncodingError(ValueError):
    """A Content-Encoding that this server does not read."""


def decoded(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield the decompressed pieces of a body. Raise UnknownEncodingError at once; ValueError for a damaged or cut-off body."""
    factories: dict[str, Callable[[], object]] = {
        "gzip": lambda: zlib.decompressobj(31),
        "deflate": lambda: zlib.decompressobj(15),
        "lz4": lz4.frame.LZ4FrameDecompressor,
        "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
    }
    if encoding in ("", "identity"):
        return iter(pieces)
    if encoding not in factories:
        raise UnknownEncodingError(f"Content-Encoding {encoding!r} is not one of {', '.join(factories)}")
    return _decoded(pieces, encoding, factories[encoding])


def _decoded(pieces: Iterable[bytes], encoding: str, factory: Callable[[], object]) -> Iterator[bytes]:
    decoder, is_inside = None, False
    try:
        for piece in pieces:
            # One body may hold several frames, one after the other.
            while piece:
                decoder = decoder or factory()
                is_inside = True
                plain = decoder.decompress(piece)  # type: ignore[attr-defined]
                piece = b""
                if decoder.eof:  # type: ignore[attr-defined]
                    piece, decoder, is_inside = decoder.unused_data or b"", None, False  # type: ignore[attr-defined]
                if plain:
                    yield plain
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:
        raise ValueError(f"the body is not valid {encoding}: {error}") from error
    if is_inside:
        raise ValueError(f"the body ends in the middle of its {encoding} data")


class Encoder:
    """Compresses a response piece by piece; each piece can be read as soon as it arrives."""

    def __init__(self, encoding: str) -> None:
        self._lz4 = lz4.frame.LZ4FrameCompressor(auto_flush=True) if encoding == "lz4" else None
        self._zstd = zstandard.ZstdCompressor(level=1).compressobj() if encoding == "zstd" else None
        self._gzip = zlib.compressobj(1, wbits=31) if encoding == "gzip" else None
        self._has_begun = False

    def encode(self, piece: bytes | memoryview) -> bytes:
        if self._lz4:
            begin = b"" if self._has_begun else self._lz4.begin()
            self._has_begun = True
            return bytes(begin + self._lz4.compress(piece))
        if self._zstd:
            return self._zstd.compress(piece) + self._zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        if self._gzip:
            return self._gzip.compress(piece) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        return bytes(piece)

    def finish(self) -> bytes:
        if self._lz4:
            return (b"" if self._has_begun else bytes(self._lz4.begin())) + bytes(self._lz4.flush())
        if self._zstd:
            return self._zstd.flush()
        return self._gzip.flush() if self._gzip else b""


def response_encoding(accepted: str) -> str:
    """Return the encoding of a response for an Accept-Encoding header, cheapest first; "" for none."""
    names = {part.split(";")[0].strip().lower() for part in accepted.split(",")}
    return next((name for name in ("lz4", "zstd", "gzip") if name in names), "")


def cut(body: memoryview) -> Iterator[memoryview]:
    """Yield the body in pieces of at most 1 MiB."""
    return (body[start : start + _PIECE_BYTES] for start in range(0, len(body), _PIECE_BYTES))
