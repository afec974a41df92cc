"""transform: parsed columns in, the sink's columns out.

In: the records that parse accepted. Out: one column per mapping row, in its order, in the Arrow type in which ClickHouse takes that column
type (`columns.arrow_type`); then the position columns, with `_tf_emit` 0 unless a record has several rows. A column that needs no change is
passed through, not copied.

Rejected, by the first column in mapping order that rejects, with the column's name as `field`:
- `null_in_non_nullable`: null for a column that is neither Nullable nor has a DEFAULT. A DEFAULT is never applied to a null Array, Map or
  JSON (ClickHouse stores [] or {} instead, or fails; measured, 26.9), so for these types a null is rejected even with a DEFAULT.
- `out_of_range`: a number, date or instant outside the column's type; a string longer than FixedString.
- `row_too_large`: the row would not fit into a frame.
- `invalid_value`: a string that is no member, date, address, ... of the type. `wrong_type`: an element of an Array, Map or Tuple of another
  JSON type.

Guarantee: the outcome of a record depends on that record and the mapping alone. No state is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.rejections import Rejections
from pipelines.process.steps.mapping.composites import convert, element_source
from pipelines.process.steps.mapping.convert import DATE_TARGETS, FLOAT_TARGETS, INSTANT_TARGETS, INTEGER_TARGETS, STRING_TARGETS
from pipelines.protocol.records import EMIT_FIELD, POSITION_COLUMNS, StageOutput, most_row_bytes
from pipelines.types.arrow_types import arrow_type
from pipelines.types.columns import FLOATS, ColumnType
from pipelines.types.engine import Engine
from pipelines.types.fields import SOURCE_TYPES, ParsedField
from pipelines.types.row_sizes import row_bytes, widest_row_bytes
from pipelines.types.time_formats import has_time_of_day, is_format
from pipelines.types.unions import is_union
from pipelines.types.vectors import one_chunk, to_mask

NO_DEFAULT_FOR_NULL = frozenset({"Array", "Map", "JSON", "QBit"})
_OF_OBJECTS = frozenset({"String", "Map", "Tuple", "JSON", "Geometry"})
_TARGETS = {
    "decimal": frozenset({"Decimal"}),
    "bytes": frozenset({"String", "FixedString"}),
    "bool": frozenset({"Bool"}),
    "array": frozenset({"String", "Array", "Nested", "Tuple", "QBit"}),
    "object": _OF_OBJECTS,
    "map": _OF_OBJECTS,
    "any": frozenset({"String", "Variant", "Dynamic"}),
    "timestamp": INSTANT_TARGETS,
    "string": STRING_TARGETS,
}
LEAST_ROW_BYTES = 16 * 1024
"""The room for the values of a row that a mapping must leave in a frame."""
MAP_KEYS = STRING_TARGETS - {"JSON", "Decimal", *FLOATS}


@dataclass(frozen=True)
class TargetColumn:
    """One row of the mapping: the field `source` becomes the column `name` of `type`.

    `has_default`: the table declares a DEFAULT, which the sink lets ClickHouse apply to nulls. `unit`: the unit of the field's numbers
    since 1970, or the format of its texts, if it has one; a unit applies to instants, a format to dates, too, also inside of composites.
    """

    source: str
    name: str
    type: ColumnType
    has_default: bool
    unit: str = ""

    @property
    def takes_null(self) -> bool:
        return self.type.takes_null or (self.has_default and self.type.name not in NO_DEFAULT_FOR_NULL)


def reject_wide(mapped: pa.Table) -> StageOutput:
    """Reject rows that may not fit into a frame (`row_too_large`): steps make large values, and a large field may have several columns.

    The size before compression counts, so that the answer does not depend on a library's version.
    """
    refused, most_bytes = Rejections("transform", mapped.num_rows), most_row_bytes(mapped.schema)
    if widest_row_bytes(mapped) > most_bytes:
        message = f"the row takes more than {most_bytes} bytes, a frame of these columns holds no more"
        refused.note(row_bytes(mapped) > most_bytes, "row_too_large", None, message)
    return refused.split(mapped, mapped)


def map_columns(engine: Engine, parsed: pa.Table, mapping: Sequence[TargetColumn], keep: Sequence[str] = ()) -> StageOutput:
    """Return the sink's rows, and the records that do not fit the table; both in the order of `parsed`.

    `keep` names columns of `parsed` that are passed through after the position columns. Raise TypeError for a mapping that
    `check_mapping` rejects.
    """
    rejections = Rejections("transform", parsed.num_rows)
    columns = [_column(engine, parsed, target, rejections) for target in mapping]
    if EMIT_FIELD.name not in parsed.column_names:
        parsed = parsed.append_column(EMIT_FIELD, pa.array(np.zeros(parsed.num_rows, dtype=np.uint32)))
    positions = [parsed[name] for name in POSITION_COLUMNS]
    names = [*(target.name for target in mapping), *POSITION_COLUMNS, *keep]
    return rejections.split(parsed, pa.table([*columns, *positions, *(parsed[name] for name in keep)], names=names))


def check_mapping(fields: Sequence[ParsedField], mapping: Sequence[TargetColumn]) -> list[str]:
    """Return the faults of `mapping` over `fields`, one readable line each; empty if every value can be converted into its column."""
    sources = {field.name: field.type for field in fields}
    faults = []
    seen: set[str] = set()
    for target in mapping:
        where = f"column {target.name!r}"
        if target.name in seen:
            faults.append(f"{where} is mapped twice")
        seen.add(target.name)
        if target.name in POSITION_COLUMNS:
            faults.append(f"{where}: names of position columns are not mapped")
        source = sources.get(target.source)
        if source is None:
            faults.append(f"{where}: no field {target.source!r}")
        else:
            faults += [f"{where}: {fault}" for fault in _type_faults(source, target.type)]
        if is_format(target.unit) and has_time_of_day(target.unit) and target.type.name in DATE_TARGETS:
            faults.append(f"{where}: the format {target.unit} has a time of day, which {target.type} does not hold: use DateTime")
    if not faults and most_row_bytes(pa.schema([(target.name, arrow_type(target.type)) for target in mapping])) < LEAST_ROW_BYTES:
        faults.append(f"a frame with these {len(mapping):,} columns has no room for the values of a row; map fewer, or shorten their names")
    return faults


def _type_faults(source: str, target: ColumnType) -> Iterator[str]:
    if target.name not in targets_of(source):
        yield f"{source} cannot become {target}; it can become {', '.join(sorted(targets_of(source)))}"
    elif target.name == "Tuple" and bool(target.fields) != (source != "array"):
        names = "without names" if source == "array" else "with named members"
        yield f"an {source if source == 'array' else 'object'} can only become a Tuple {names}, not {target}"
    elif target.name == "Map" and target.inner[0].name not in MAP_KEYS:
        yield f"the keys of an object are strings and cannot become {target.inner[0]}"
    else:
        values = target.inner[1:] if target.name == "Map" else () if is_union(target) else target.inner
        for inner in values:
            yield from _type_faults(element_source(inner), inner)


def targets_of(source: str) -> frozenset[str]:
    """Return the names of the column types that a value of this source type can become."""
    if source in _TARGETS:
        return _TARGETS[source]
    return FLOAT_TARGETS if SOURCE_TYPES[source].is_float else INTEGER_TARGETS


def _column(engine: Engine, parsed: pa.Table, target: TargetColumn, rejections: Rejections) -> pa.Array:
    column = one_chunk(parsed[target.source])
    if column.null_count and not target.takes_null:
        message = f"column {target.name} ({target.type}) is not Nullable and has no DEFAULT{_hint(target)}"
        rejections.note(to_mask(pc.is_null(column)), "null_in_non_nullable", target.name, message)
    converted, faults = convert(engine, column, target.type, target.unit)
    for fault in faults:
        rejections.note(fault.rows, fault.code, target.name, f"column {target.name} ({target.type}): {fault.message}")
    return converted


def _hint(target: TargetColumn) -> str:
    return f" that ClickHouse would apply to a null {target.type.name}" if target.type.name in NO_DEFAULT_FOR_NULL else ""
