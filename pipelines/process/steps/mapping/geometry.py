"""Conversions of GeoJSON geometries to WKB, the form in which ClickHouse reads a Geometry, and back for people. Pure.

A JSON array alone does not say whether it is a LineString or a MultiPoint, so only an object with a `type` becomes a Geometry. WKB has no
Ring, and a Polygon without a ring is stored with an empty one (measured, 26.9), so these are not made.
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.rejections import Rejections
from pipelines.process.steps.mapping.convert import Converted, Fault
from pipelines.process.steps.parse.json_reader import reader_of
from pipelines.types.columns import SHAPES, ColumnType
from pipelines.types.engine import Engine
from pipelines.types.fields import ParsedField
from pipelines.types.vectors import Mask, to_mask

Bytes = npt.NDArray[np.uint8]
Sizes = npt.NDArray[np.int64]
_CODES = {"Point": 1, "LineString": 2, "Polygon": 3, "MultiPoint": 4, "MultiLineString": 5, "MultiPolygon": 6}
"""The shapes of WKB and GeoJSON, with their codes in WKB."""
_PARTS = {"MultiPoint": "Point", "MultiLineString": "LineString", "MultiPolygon": "Polygon"}
_POINT_BYTES = 16
_MEMBERS = (ParsedField("type", "string"), ParsedField("coordinates", "array"))
"""The members of a geometry that are read; others, such as `bbox`, are left out."""
_NO_SHAPE = f"the object is no GeoJSON geometry with coordinates, whose type is {', '.join(_CODES)}"


def convert_geometry(engine: Engine, texts: pa.Array, convert_shape: Callable[[pa.Array, ColumnType], Converted]) -> Converted:
    """Convert JSON texts of GeoJSON geometries to WKB; null stays null. `convert_shape` converts texts of coordinates to a shape's type."""
    present = to_mask(pc.is_valid(texts))
    rejections = Rejections("transform", len(texts))
    types, coordinates = reader_of(_MEMBERS).read(engine, pc.fill_null(texts, "{}"), rejections)
    faults = [Fault(rows & present, code, f"member {name}: {words}" if name else words) for rows, code, name, words in rejections.reasons()]
    is_read = rejections.open & present
    is_whole = is_read & to_mask(pc.is_valid(coordinates)) & to_mask(pc.is_in(types, pa.array([*_CODES])))
    faults.append(Fault(is_read & ~is_whole, "invalid_value", _NO_SHAPE))
    found: list[pa.Array] = [pa.nulls(1, pa.binary())]
    places = np.zeros(len(texts), dtype=np.int64)
    for shape in _CODES:
        rows = np.flatnonzero(is_whole & to_mask(pc.equal(types, shape)))
        if not len(rows):
            continue
        values, refused = convert_shape(coordinates.take(pa.array(rows)), SHAPES[shape])
        refused = [*refused, *_without_rings(values, shape)]
        good = np.ones(len(rows), dtype=bool)
        for fault in refused:
            faults.append(Fault(_spread(rows[fault.rows], len(texts)), fault.code, f"{shape}: {fault.message}"))
            good &= ~fault.rows
        places[rows[good]] = sum(map(len, found)) + np.arange(np.count_nonzero(good))
        found.append(_wkb(values.filter(pa.array(good)), shape))
    return pa.concat_arrays(found).take(pa.array(places)), [fault for fault in faults if fault.rows.any()]


def _without_rings(values: pa.Array, shape: str) -> list[Fault]:
    """Return the fault of polygons without a ring."""
    polygons = values
    rows = np.arange(len(values))
    if shape == "MultiPolygon":
        rows = np.repeat(rows, pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False))
        polygons = pc.list_flatten(values)
    elif shape != "Polygon":
        return []
    is_empty = to_mask(pc.equal(pc.list_value_length(polygons), 0))
    return [Fault(_spread(rows[is_empty], len(values)), "invalid_value", "ClickHouse does not keep a polygon without a ring")]


def _spread(rows: npt.NDArray[np.int64], count: int) -> Mask:
    spread = np.zeros(count, dtype=bool)
    spread[rows] = True
    return spread


def _wkb(values: pa.Array, shape: str) -> pa.Array:
    """Encode values of a shape's type, without nulls, as WKB."""
    sizes, content = _geometries(values, shape)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(content.tobytes())])


def _geometries(values: pa.Array, shape: str) -> tuple[Sizes, Bytes]:
    """Return the sizes of the values as WKB, and their bytes one after the other."""
    if shape == "Point":
        return _headed(np.ones(len(values), np.int64), *_points(values), shape, with_count=False)
    lengths, parts = pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64), pc.list_flatten(values)
    if shape in _PARTS:
        return _headed(lengths, *_geometries(parts, _PARTS[shape]), shape)
    if shape == "LineString":
        return _headed(lengths, *_points(parts), shape)
    points = pc.list_value_length(parts).to_numpy(zero_copy_only=False).astype(np.int64)
    return _headed(lengths, *_headed(points, *_points(pc.list_flatten(parts)), ""), shape)


def _points(values: pa.Array) -> tuple[Sizes, Bytes]:
    columns = [pc.struct_field(values, index).to_numpy(zero_copy_only=False) for index in (0, 1)]
    return np.full(len(values), _POINT_BYTES), np.stack(columns, axis=1).astype("<f8").reshape(-1).view(np.uint8)


def _headed(lengths: Sizes, sizes: Sizes, content: Bytes, shape: str, with_count: bool = True) -> tuple[Sizes, Bytes]:
    """Put a header before each group of `lengths` parts, which have `sizes`: byte order and code of a shape, and the number of parts."""
    header = [np.frombuffer(struct.pack("<BI", 1, _CODES[shape]), np.uint8)[None].repeat(len(lengths), axis=0)] if shape else []
    header += [lengths.astype("<u4").view(np.uint8).reshape(-1, 4)] if with_count else []
    heads = np.concatenate(header, axis=1)
    ends = np.concatenate(([0], np.cumsum(sizes)))
    last = np.cumsum(lengths)
    whole = ends[last] - ends[last - lengths] + heads.shape[1]
    starts = np.cumsum(whole) - whole
    out = np.empty(int(whole.sum()), np.uint8)
    is_content = np.ones(len(out), dtype=bool)
    for byte in range(heads.shape[1]):
        out[starts + byte] = heads[:, byte]
        is_content[starts + byte] = False
    out[is_content] = content
    return whole, out


def geojson(wkb: bytes) -> dict[str, Any]:
    """Return the GeoJSON of a geometry that `convert_geometry` has made."""
    return _read(wkb, 0)[0]


def _read(wkb: bytes, at: int) -> tuple[dict[str, Any], int]:
    shape = next(name for name, code in _CODES.items() if code == struct.unpack_from("<I", wkb, at + 1)[0])
    at += 5
    if shape == "Point":
        return {"type": shape, "coordinates": [*struct.unpack_from("<2d", wkb, at)]}, at + _POINT_BYTES
    (count,) = struct.unpack_from("<I", wkb, at)
    at += 4
    parts: list[Any] = []
    for _ in range(count):
        if shape in _PARTS:
            part, at = _read(wkb, at)
            parts.append(part["coordinates"])
        elif shape == "LineString":
            parts.append([*struct.unpack_from("<2d", wkb, at)])
            at += _POINT_BYTES
        else:
            (points,) = struct.unpack_from("<I", wkb, at)
            parts.append([[*struct.unpack_from("<2d", wkb, at + 4 + index * _POINT_BYTES)] for index in range(points)])
            at += 4 + points * _POINT_BYTES
    return {"type": shape, "coordinates": parts}, at
