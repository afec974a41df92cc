"""Reads JSON texts by our own C code: the rows that it surely understands, with the values that `json_reader` reads otherwise.

It costs at most an eighth of what DuckDB takes (docs/benchmarks-steps.md). Rows with any irregularity are left to DuckDB's way, which gives
all reasons.
"""

import ctypes

import numpy as np
import pyarrow as pa

from pipelines.native_library import JSON_READER
from pipelines.types.fields import ParsedField
from pipelines.types.vectors import Mask

_KINDS = (
    *("string", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"),
    *("array", "object", "decimal", "any"),
)
_SAME_AS = {"bytes": "string", "int": "int64", "uint": "uint64", "float": "float64", "map": "object"}
_MAX_NODES = 4096
_MAX_DEPTH = 64
_NO_SLOT = -1


class _Tree(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("nodes", "fields", "keys")),
        *((name, ctypes.c_int32) for name in ("n_nodes", "n_fields", "n_slots")),
    ]


class _Texts(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("valid", "offsets", "bytes")),
        *((name, ctypes.c_int64) for name in ("size", "first", "rows")),
    ]


class _ArrowArray(ctypes.Structure):
    """https://arrow.apache.org/docs/format/CDataInterface.html."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
        *((name, ctypes.c_void_p) for name in ("buffers", "children", "dictionary", "release", "private_data")),
    ]


def native_reader(fields: tuple[ParsedField, ...]) -> "NativeReader | None":
    """Return the reader of `fields`; None if the library is not there, or not made for so many or so deep ones."""
    library = JSON_READER.load()
    nodes = {path[:depth] for field in fields for path in field.paths for depth in range(len(path) + 1)}
    if library is None or not fields or len(nodes) > _MAX_NODES or max(map(len, nodes)) > _MAX_DEPTH:
        return None
    return NativeReader(library, fields)


class NativeReader:
    """Reads one set of fields. Calls may run at the same time."""

    def __init__(self, library: ctypes.CDLL, fields: tuple[ParsedField, ...]) -> None:
        self._read = library.tallyflow_read_json
        self._read.argtypes = [ctypes.POINTER(_Tree), ctypes.POINTER(_Texts), ctypes.c_void_p, ctypes.POINTER(_ArrowArray)]
        self._read.restype = ctypes.c_int32
        self._types = [field.source.arrow for field in fields]
        indices: dict[tuple[str, ...], int] = {(): 0}
        nodes = [[0, 0, 0, _NO_SLOT]]
        keys = b""
        specs = []
        slots = 0
        for field in fields:
            for path in field.paths:
                for depth in range(1, len(path) + 1):
                    if path[:depth] not in indices:
                        indices[path[:depth]] = len(nodes)
                        # A key with half a surrogate pair occurs in no text.
                        key = path[depth - 1].encode("utf-8", "surrogatepass")
                        nodes.append([len(keys), len(key), indices[path[: depth - 1]], _NO_SLOT])
                        keys += key
                nodes[indices[path]][-1] = slots
                slots += 1
            second = slots - 1 if len(field.paths) > 1 else _NO_SLOT
            specs.append([_KINDS.index(_SAME_AS.get(field.type, field.type)), slots - len(field.paths), second])
        self._nodes, self._specs, self._keys = np.array(nodes, np.int32), np.array(specs, np.int32), np.frombuffer(keys, np.uint8)
        addresses = (one.ctypes.data for one in (self._nodes, self._specs, self._keys))
        self._tree = _Tree(*addresses, len(nodes), len(specs), slots)

    def read(self, texts: pa.Array) -> tuple[list[pa.Array], Mask]:
        """Return a column per field, and the mask of the rows that were read, or are null; other rows are null in every column.

        `texts` are valid strings. Raises MemoryError.
        """
        if texts.type != pa.string():
            raise TypeError(f"reading JSON: texts must be strings, not {texts.type}")
        valid, offsets, content = texts.buffers()
        # Arrow permits an array without rows to have no offsets; nobody looks at them.
        addresses = (None if buffer is None else buffer.address for buffer in (valid, offsets, content))
        view = _Texts(*addresses, 0 if content is None else content.size, texts.offset, len(texts))
        proven: Mask = np.empty(len(texts), dtype=bool)
        arrays = (_ArrowArray * len(self._types))()
        fault = self._read(self._tree, view, proven.ctypes.data, arrays)
        if fault == 1:
            raise MemoryError(f"reading {len(texts)} JSON texts")
        if fault:
            raise ValueError("reading JSON: the offsets of the texts lie outside of their buffer")
        return [pa.Array._import_from_c(ctypes.addressof(array), kind) for array, kind in zip(arrays, self._types, strict=True)], proven
