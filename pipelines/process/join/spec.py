"""The join of a pipeline file as the join takes it: sides, keys, windows, and the fields that a joined record takes of each side."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Self

import pyarrow as pa

from pipelines.key_store.keys import kind_of
from pipelines.process.join.sides import Windows
from pipelines.protocol.records import POSITION_FIELDS
from pipelines.types.fields import SOURCE_TYPES

_OF_THE_ENTRY = frozenset({"_tf_sequence", "_tf_ordinal", "_tf_arrival"})
"""Position fields of a left record that its entry holds; the others are stored beside it."""
_POSITION = tuple(field for field in POSITION_FIELDS if field.name not in _OF_THE_ENTRY)


@dataclass(frozen=True)
class SideSpec:
    """One side. `names`: the fields of the source that a joined record takes, by their names there; `fields`: the stored columns."""

    source_id: str
    key: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    fields: pa.Schema

    def renamed(self, rows: pa.Table) -> pa.Table:
        """Return rows of the source with the columns of `names` under their names in the joined record, and all that begin with _tf_."""
        columns = {name: rows.column(name) for name in rows.column_names if name.startswith("_tf_")}
        return pa.table({joined: rows.column(name) for joined, name in self.names} | columns)


@dataclass(frozen=True)
class JoinSpec:
    """A join that is enabled. `unmatched`: what becomes of a left record without a match."""

    left: SideSpec
    right: SideSpec
    windows: Windows
    unmatched: Literal["drop", "emit", "dead_letter"]

    @classmethod
    def of_file(cls, join: Any, types: Mapping[str, Mapping[str, str]]) -> Self:
        """Build it of the `join` of a sound file. `types`: by source, the types of the fields that reach the join.

        Raise ValueError for keys of kinds that are never equal.
        """
        left, right = (_side(side, join, types[side.source_id]) for side in (join.left_source, join.right_source))
        for names in zip(left.key, right.key, strict=True):
            kinds = [types[side.source_id][name] for side, name in zip((left, right), names, strict=True)]
            if len({kind_of(SOURCE_TYPES[kind].arrow) for kind in kinds}) > 1:
                raise ValueError(f"{names[0]!r} is {kinds[0]} and {names[1]!r} is {kinds[1]}: keys of these types are never equal")
        microsecond = timedelta(microseconds=1)
        windows = Windows(join.left_source.time_window // microsecond, join.right_source.time_window // microsecond)
        with_position = SideSpec(left.source_id, left.key, left.names, pa.schema([*left.fields, *_POSITION]))
        return cls(with_position, right, windows, join.unmatched)


def _side(side: Any, join: Any, types: Mapping[str, str]) -> SideSpec:
    outputs = [field for field in join.output_fields if field.source_id == side.source_id]
    names = tuple((field.joined_name, field.name) for field in outputs)
    return SideSpec(
        side.source_id, tuple(side.key), names, pa.schema([(joined, SOURCE_TYPES[types[name]].arrow) for joined, name in names])
    )
