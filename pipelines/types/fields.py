"""The fields that parse reads from a JSON record, and the source types that fields of a record may have."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

_INTEGER = frozenset({"UBIGINT", "BIGINT"})
_NUMBER = _INTEGER | {"DOUBLE"}
_UNREADABLE_NAME = re.compile(r'["\\*\x00-\x1f]')


@dataclass(frozen=True)
class ParsedField:
    """A field to read: its dotted name, and its source type, a key of `SOURCE_TYPES`. `declared`: the type that messages name instead."""

    name: str
    type: str
    declared: str = ""

    @property
    def source(self) -> "SourceType":
        return SOURCE_TYPES[self.type]

    @property
    def named_type(self) -> str:
        return self.declared or self.type

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The paths to try in order: the literal key, then, for a dotted name, the nested one."""
        segments = tuple(self.name.split("."))
        nested = len(segments) > 1 and all(segments)
        return ((self.name,), segments) if nested else ((self.name,),)


@dataclass(frozen=True)
class SourceType:
    """How to read a source type: the engine's type, the kinds that `json_type` may report for it, and the resulting Arrow type.

    A type without kinds is never read from JSON.
    """

    engine: str
    kinds: frozenset[str]
    arrow: pa.DataType

    @property
    def is_float(self) -> bool:
        return bool(pa.types.is_floating(self.arrow))

    @property
    def is_integer(self) -> bool:
        return bool(pa.types.is_integer(self.arrow))

    @property
    def is_json_text(self) -> bool:
        """True for array, object, map, any and decimal, which come out as JSON text."""
        return self.engine == "JSON"


Tree = dict[str, "SourceType | Tree"]
"""The fields to read of an object: the source type of each key, or the tree of the object there."""

_TEXT = frozenset({"VARCHAR"})
_ARRAY = SourceType("JSON", frozenset({"ARRAY"}), pa.string())
_OBJECT = SourceType("JSON", frozenset({"OBJECT"}), pa.string())
_INT64 = SourceType("BIGINT", _INTEGER, pa.int64())
_UINT64 = SourceType("UBIGINT", _INTEGER, pa.uint64())
_FLOAT64 = SourceType("DOUBLE", _NUMBER, pa.float64())

SOURCE_TYPES: dict[str, SourceType] = {
    "decimal": SourceType("JSON", _NUMBER | _TEXT, pa.string()),
    "string": SourceType("VARCHAR", _TEXT, pa.string()),
    "bytes": SourceType("VARCHAR", _TEXT, pa.binary()),
    "bool": SourceType("BOOLEAN", frozenset({"BOOLEAN"}), pa.bool_()),
    "int": _INT64,
    "int8": SourceType("TINYINT", _INTEGER, pa.int8()),
    "int16": SourceType("SMALLINT", _INTEGER, pa.int16()),
    "int32": SourceType("INTEGER", _INTEGER, pa.int32()),
    "int64": _INT64,
    "uint": _UINT64,
    "uint8": SourceType("UTINYINT", _INTEGER, pa.uint8()),
    "uint16": SourceType("USMALLINT", _INTEGER, pa.uint16()),
    "uint32": SourceType("UINTEGER", _INTEGER, pa.uint32()),
    "uint64": _UINT64,
    "float": _FLOAT64,
    "float32": SourceType("FLOAT", _NUMBER, pa.float32()),
    "float64": _FLOAT64,
    "array": _ARRAY,
    "object": _OBJECT,
    "map": _OBJECT,
    "any": SourceType("JSON", _NUMBER | _TEXT | {"BOOLEAN", "ARRAY", "OBJECT"}, pa.string()),
    "timestamp": SourceType("TIMESTAMPTZ", frozenset(), pa.timestamp("us", tz="UTC")),
}
"""The source types by name. `int`, `uint` and `float` are the 64-bit ones. `decimal`, a member of a composite, is a number or a string.

`any` is every JSON value. `timestamp` is an instant of Kafka or NATS.
"""
JSON_TYPES = {name: source for name, source in SOURCE_TYPES.items() if source.kinds}


def check_fields(fields: Sequence[ParsedField]) -> list[str]:
    """List the faults of `fields`, one readable line each; empty if they can be read."""
    faults = []
    seen: set[str] = set()
    for field in fields:
        if field.type not in JSON_TYPES:
            faults.append(f"field {field.name!r}: unknown type {field.type!r}, expected one of {', '.join(JSON_TYPES)}")
        if not field.name or _UNREADABLE_NAME.search(field.name):
            faults.append(f"field {field.name!r}: a name must not be empty, or hold a quote, a backslash, * or a control character")
        if field.name.startswith("_tf_"):
            faults.append(f"field {field.name!r}: names that start with _tf_ are reserved for positions")
        if field.name in seen:
            faults.append(f"field {field.name!r} is named twice")
        seen.add(field.name)
    return faults
