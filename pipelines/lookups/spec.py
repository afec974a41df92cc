"""What the look-ups of a program read of a table: its key, the ends of its ranges, and its columns, each with the type it is read as."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import pyarrow as pa

from pipelines.types.fields import SOURCE_TYPES

_SIGNED, _UNSIGNED = frozenset({"int", "int8", "int16", "int32", "int64"}), frozenset({"uint", "uint8", "uint16", "uint32", "uint64"})
_KEY_TYPES = {
    **dict.fromkeys(_SIGNED, "int64"),
    **dict.fromkeys(_UNSIGNED, "uint64"),
    **{name: name for name in ("string", "bytes", "bool", "timestamp")},
}
_RANGE_TYPES = frozenset({"int64", "uint64", "timestamp"})


@dataclass(frozen=True)
class Column:
    """A column of a table. `type`: a source type (`types.fields.SOURCE_TYPES`)."""

    name: str
    type: str

    @property
    def arrow(self) -> pa.DataType:
        return SOURCE_TYPES[self.type].arrow


@dataclass(frozen=True)
class Range:
    """The columns between which a field must lie: `begin` inclusive, `end` inclusive if `includes_end`. A null is an open end."""

    begin: str
    end: str
    type: str
    includes_end: bool = True


@dataclass(frozen=True)
class TableSpec:
    """The columns `key` that must equal fields of the record, at most one range beside them, and the `columns` that are read, by name."""

    key: tuple[Column, ...]
    between: Range | None
    columns: tuple[Column, ...]

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the key as a snapshot holds them."""
        ends = [Column("from", self.between.type), Column("to", self.between.type)] if self.between else []
        return pa.schema([*((f"key.{number}", column.arrow) for number, column in enumerate(self.key)), *((e.name, e.arrow) for e in ends)])

    @property
    def names(self) -> tuple[str, ...]:
        """All columns of the table that are read, each once."""
        ends = (self.between.begin, self.between.end) if self.between else ()
        return tuple(dict.fromkeys((*(column.name for column in self.key), *ends, *(column.name for column in self.columns))))

    def encode(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @property
    def shape(self) -> str:
        """A digest of all of it: an offer of a snapshot with another shape is none for this program."""
        return hashlib.sha256(json.dumps(self.encode(), sort_keys=True).encode()).hexdigest()[:16]

    def united(self, other: Self) -> "TableSpec":
        """Return what two look-ups read of one table. Raise ValueError if they read a column as different types."""
        if (self.key, self.between) != (other.key, other.between):
            raise ValueError(f"its key is read as {_types(self)} here and as {_types(other)} in another look-up: give the fields one type")
        columns = {column.name: column for column in self.columns}
        for column in other.columns:
            if columns.setdefault(column.name, column) != column:
                types = f"{columns[column.name].type} here and as {column.type}"
                raise ValueError(f"its column {column.name!r} is read as {types} in another look-up: give it one type")
        return TableSpec(self.key, self.between, tuple(columns[name] for name in sorted(columns)))


def key_type(field: str, kind: str) -> str:
    """Return the type in which a key column is read, from that of the field that must equal it. Raise ValueError if there is none."""
    if kind not in _KEY_TYPES:
        raise ValueError(f"{field!r} is {kind}: the key of a look-up is a string, bytes, bool, an integer or a timestamp")
    return _KEY_TYPES[kind]


def range_type(field: str, kind: str) -> str:
    """Return the type in which the ends of ranges are read, as `key_type`."""
    found = _KEY_TYPES.get(kind, "")
    if found not in _RANGE_TYPES:
        raise ValueError(f"{field!r} is {kind}: a range is looked up by an integer or a timestamp")
    return found


def _types(spec: TableSpec) -> str:
    ends = [spec.between.type] if spec.between else []
    return ", ".join([*(column.type for column in spec.key), *ends])


def spec_of(record: Mapping[str, Any]) -> TableSpec:
    """Return the spec that `encode` has written. Raise KeyError or TypeError for anything else."""
    key, columns = (tuple(Column(**one) for one in record[name]) for name in ("key", "columns"))
    return TableSpec(key, Range(**record["between"]) if record["between"] else None, columns)
