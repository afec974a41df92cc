"""Conversions into any ClickHouse type: scalars by `convert`, shapes by `geometry`, unions by `unions`; Array, Map and Tuple here.

All of them come from JSON text. A composite is split into the JSON texts of its elements; these are read as strictly as a record's fields
(same reader, same rules), converted, and combined again. A number may also be written as a text, as a field of type `string` may. A fault
of an element is a fault of its row. A null element is a fault, too, unless its type takes one: ClickHouse would store '' or 0 in silence
(measured, 26.9).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.rejections import Rejections
from pipelines.process.steps.mapping.convert import Converted, Fault, convert_scalar, is_counted_in
from pipelines.process.steps.mapping.geometry import convert_geometry
from pipelines.process.steps.mapping.unions import convert_union
from pipelines.process.steps.parse.json_reader import reader_of
from pipelines.types.arrow_types import tuple_fields
from pipelines.types.columns import FLOATS, INTEGER_BITS, INTERVALS, ColumnType
from pipelines.types.engine import Engine
from pipelines.types.fields import ParsedField
from pipelines.types.unions import is_union
from pipelines.types.vectors import Mask, to_mask, without

_PLAIN_STRINGS = r'^\[(?:"[^"\\\x00-\x1f]*"(?:,"[^"\\\x00-\x1f]*")*)?\]$'
"""A minified JSON array of strings without an escape."""
_NULL_INSIDE = "is null and not Nullable"
_NUMBERS = {*INTEGER_BITS, *INTERVALS, *FLOATS}
_SOURCES = {
    "Array": "array",
    "Map": "object",
    "Tuple": "object",
    "JSON": "object",
    "Bool": "bool",
    "Decimal": "decimal",
    **dict.fromkeys(FLOATS, "float64"),
    **dict.fromkeys(INTERVALS, "int64"),
    **dict.fromkeys(("Variant", "Dynamic"), "any"),
}


def convert(engine: Engine, column: pa.Array, target: ColumnType, notation: str = "") -> Converted:
    """Convert `column` to `target`; composites come from JSON text. `notation`: as of `convert_scalar`, for each time inside."""
    if target.name == "Array":
        return _array(engine, column, target, notation)
    if target.name == "Map":
        return _map(engine, column, target, notation)
    if target.name == "Tuple":
        return (_tuple if target.fields else _unnamed_tuple)(engine, column, target, notation)
    if target.name == "QBit":
        return _vector(engine, column, target)
    if target.name == "Geometry":
        return convert_geometry(engine, column, partial(convert, engine))
    if is_union(target):
        return convert_union(column, target, lambda texts, member: _elements(engine, texts, member, notation))
    return convert_scalar(engine, column, target, notation)


def element_source(target: ColumnType, notation: str = "") -> str:
    """Return the source type as which an element of a composite is read, unless it is the text of a number.

    Instants and dates are texts, or whole numbers of a unit; Decimals are texts or numbers.
    """
    if is_counted_in(notation, target):
        return "int64"
    if target.name in INTEGER_BITS:
        return "uint64" if target.name.startswith("U") else "int64"
    if target.name == "Tuple" and not target.fields:
        return "array"
    return _SOURCES.get(target.name, "string")


def _element_field(name: str, target: ColumnType, notation: str) -> ParsedField:
    """Return the field as which an element is read; its messages name the column's own type of a number, and not the one it is read as."""
    source = element_source(target, notation)
    is_plain = _may_be_text(target, notation) or target.name in ("Bool", "Decimal")
    return ParsedField(name, source, str(target) if is_plain else "")


def _may_be_text(target: ColumnType, notation: str) -> bool:
    """Return whether an element that is read as a number may be the text of one."""
    return target.name in _NUMBERS or is_counted_in(notation, target)


def _array(engine: Engine, texts: pa.Array, target: ColumnType, notation: str) -> Converted:
    if target.inner[0].name == "String" and pc.all(pc.match_substring_regex(texts, _PLAIN_STRINGS)).as_py() is not False:
        return _plain_strings(texts), []
    (lists,) = engine.ask("""SELECT json_transform(v, '["JSON"]') FROM _tf_values""", texts)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    values, faults = _elements(engine, pc.list_flatten(lists), target.inner[0], notation)
    malformed = to_mask(pc.and_(pc.is_null(lists), pc.is_valid(texts)))
    outer = [Fault(malformed, "invalid_value", "the text is no JSON array")] if malformed.any() else []
    return pa.ListArray.from_arrays(_offsets(lengths), values), [*outer, *_lift(faults, lengths, "an element")]


def _vector(engine: Engine, texts: pa.Array, target: ColumnType) -> Converted:
    """Convert JSON arrays of as many numbers as the QBit has."""
    vectors, faults = _array(engine, texts, replace(target, name="Array", arguments=target.inner), "")
    is_other = to_mask(pc.not_equal(pc.list_value_length(vectors), target.number(1))) & to_mask(pc.is_valid(texts))
    for fault in faults:
        is_other &= ~fault.rows
    return vectors, [
        *faults,
        *([Fault(is_other, "invalid_value", f"the array has not {target.number(1)} numbers")] if is_other.any() else []),
    ]


def _plain_strings(texts: pa.Array) -> pa.Array:
    """Return the strings of texts that match _PLAIN_STRINGS; they stand there as they are."""
    lists = pc.split_pattern(pc.binary_slice(texts.cast(pa.binary()), 2, -2), b'","')
    lengths, values = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), pc.list_flatten(lists)
    is_empty = to_mask(pc.equal(texts, "[]"))
    if is_empty.any():
        values = values.filter(pa.array(~np.repeat(is_empty, lengths)))
        lengths = np.where(is_empty, 0, lengths)
    return pa.ListArray.from_arrays(_offsets(lengths), values.cast(pa.string()))


def _map(engine: Engine, texts: pa.Array, target: ColumnType, notation: str) -> Converted:
    (maps,) = engine.ask("""SELECT json_transform(v, '"MAP(VARCHAR, JSON)"') FROM _tf_values""", texts)
    malformed = to_mask(pc.and_(pc.is_null(maps), pc.is_valid(texts)))
    entries = maps.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    lengths = pc.fill_null(pc.list_value_length(entries), 0).to_numpy(zero_copy_only=False)
    flat = pc.list_flatten(entries)
    key_type, value_type = target.inner
    keys, key_faults = convert_scalar(engine, pc.struct_field(flat, 0), key_type)
    values, value_faults = _map_values(engine, pc.struct_field(flat, 1), value_type, notation)
    faults = [Fault(malformed, "invalid_value", "the text is no JSON object with distinct keys")] if malformed.any() else []
    faults += [*_lift(key_faults, lengths, "a key"), *_lift(value_faults, lengths, "the value of a key")]
    if keys.null_count:
        # A key that could not be converted is null here, which no Arrow map may hold: its row, rejected anyway, loses the key.
        refused = to_mask(pc.is_null(keys))
        lengths = lengths - np.bincount(np.repeat(np.arange(len(lengths)), lengths)[refused], minlength=len(lengths)).astype(np.int32)
        keys, values = keys.filter(pa.array(~refused)), values.filter(pa.array(~refused))
    return pa.MapArray.from_arrays(_offsets(lengths), keys, values), faults


def _map_values(engine: Engine, texts: pa.Array, target: ColumnType, notation: str) -> Converted:
    """Convert a map of strings; values that are no JSON strings become their JSON text, as GlassFlow does (features.md 1.2)."""
    if target.name != "String":
        return _elements(engine, texts, target, notation)
    (strings,) = engine.ask("SELECT json_extract_string(v, '$') FROM _tf_values", texts)
    return strings, _null_faults(strings, target)


def _tuple(engine: Engine, texts: pa.Array, target: ColumnType, notation: str) -> Converted:
    names = tuple_fields(target)
    present = to_mask(pc.is_valid(texts))
    documents = pc.fill_null(texts, "{}")
    reader = reader_of(tuple(_element_field(name, kind, notation) for name, kind in zip(names, target.inner, strict=True)))
    rejections = Rejections("transform", len(texts))
    read = reader.read(engine, documents, rejections)
    # A member that is read alone may be the text of a number; few rows have one.
    alone = ~rejections.open if any(_may_be_text(kind, notation) for kind in target.inner) else np.zeros(len(texts), dtype=bool)
    faults = [_of_member(field, Fault(rows & ~alone, code, message)) for rows, code, field, message in rejections.reasons()]
    members = []
    for name, kind, column in zip(names, target.inner, read, strict=True):
        member, member_faults = _read(engine, without(column, ~rejections.open), kind, notation)
        found = [*member_faults, *(Fault(fault.rows & ~alone, *fault[1:]) for fault in _null_faults(column, kind))]
        if alone.any():
            others, other_faults = _member(engine, documents.filter(pa.array(alone)), name, kind, notation)
            member, found = _placed(others, alone, member), [*found, *_spread(other_faults, alone)]
        members.append(member)
        faults += [_of_member(name, Fault(fault.rows & present, *fault[1:])) for fault in found]
    struct = pa.StructArray.from_arrays(members, names=list(names), mask=pa.array(~present))
    return struct, [fault for fault in faults if fault.rows.any()]


def _of_member(name: str | None, fault: Fault) -> Fault:
    return Fault(fault.rows, fault.code, f"member {name}: {fault.message}" if name else fault.message)


def _placed(others: pa.Array, rows: Mask, column: pa.Array) -> pa.Array:
    """Return `column` with the values of `others` in `rows`, in their order."""
    index = np.arange(len(column))
    index[rows] = len(column) + np.arange(len(others))
    return pa.concat_arrays([column, others]).take(pa.array(index))


def _spread(faults: list[Fault], rows: Mask) -> Iterator[Fault]:
    """Yield the faults of the rows that `rows` marks, in their order, as faults of all rows."""
    for fault in faults:
        spread = np.zeros(len(rows), dtype=bool)
        spread[rows] = fault.rows
        yield Fault(spread, fault.code, fault.message)


def _unnamed_tuple(engine: Engine, texts: pa.Array, target: ColumnType, notation: str) -> Converted:
    """Convert JSON arrays that have an element for each member."""
    count = len(target.inner)
    (lists,) = engine.ask("""SELECT json_transform(v, '["JSON"]') FROM _tf_values""", texts)
    present, is_whole = to_mask(pc.is_valid(texts)), to_mask(pc.equal(pc.list_value_length(lists), count))
    lists = without(lists, ~is_whole)
    faults = [Fault(present & ~is_whole, "invalid_value", f"the text is no JSON array of {count} elements")]
    members = []
    for index, kind in enumerate(target.inner):
        member, found = _elements(engine, pc.list_element(lists, index), kind, notation)
        members.append(member)
        faults += [Fault(fault.rows & is_whole, fault.code, f"element {index + 1}: {fault.message}") for fault in found]
    struct = pa.StructArray.from_arrays(members, names=list(tuple_fields(target)), mask=pa.array(~present))
    return struct, [fault for fault in faults if fault.rows.any()]


def _elements(engine: Engine, texts: pa.Array, target: ColumnType, notation: str) -> Converted:
    """Convert JSON texts (null = JSON null) to `target`."""
    wrapped = pc.binary_join_element_wise('{"v":', pc.fill_null(texts, "null"), "}", "")
    return _member(engine, wrapped, "v", target, notation)


def _member(engine: Engine, documents: pa.Array, name: str, target: ColumnType, notation: str) -> Converted:
    """Convert the member `name` of JSON objects (absent = JSON null) to `target`; here a null is a fault unless `target` takes it."""
    rejections = Rejections("transform", len(documents))
    (column,) = reader_of((_element_field(name, target, notation),)).read(engine, documents, rejections)
    is_number = rejections.open
    converted, faults = _read(engine, without(column, ~is_number), target, notation)
    is_text = np.zeros(len(documents), dtype=bool)
    if _may_be_text(target, notation) and not is_number.all():
        rows = ~is_number
        refused = Rejections("transform", int(np.count_nonzero(rows)))
        (texts,) = reader_of((ParsedField(name, "string"),)).read(engine, documents.filter(pa.array(rows)), refused)
        is_text[rows] = refused.open
        numbers, more = convert_scalar(engine, without(texts, ~refused.open), target, notation)
        converted, faults = _placed(numbers, rows, converted), [*faults, *_spread(more, rows)]
    read_faults = [Fault(rows & ~is_text, code, message) for rows, code, _, message in rejections.reasons()]
    is_null = to_mask(pc.is_null(column)) & is_number
    null_faults = [Fault(is_null, "null_in_non_nullable", _NULL_INSIDE)] if is_null.any() and not target.takes_null else []
    return converted, [fault for fault in (*read_faults, *faults, *null_faults) if fault.rows.any()]


def _read(engine: Engine, column: pa.Array, target: ColumnType, notation: str) -> Converted:
    """Convert a column that was read as `element_source(target)` to `target`."""
    if target.name != "Decimal":
        return convert(engine, column, target, notation)
    is_text = to_mask(pc.starts_with(column, '"'))
    (numbers,) = engine.ask("SELECT try_cast(v AS DOUBLE) FROM _tf_values", without(column, is_text))
    result, faults = convert_scalar(engine, numbers, target)
    infinite = to_mask(pc.is_null(numbers)) & to_mask(pc.is_valid(column)) & ~is_text
    if infinite.any():
        faults = [*faults, Fault(infinite, "out_of_range", f"the number does not fit {target}")]
    if is_text.any():
        (texts,) = engine.ask("SELECT json_extract_string(v, '$') FROM _tf_values", without(column, ~is_text))
        decimals, more = convert_scalar(engine, texts, target)
        result, faults = pc.if_else(pa.array(is_text), decimals, result), [*faults, *more]
    return result, faults


def _null_faults(column: pa.Array, target: ColumnType) -> list[Fault]:
    if target.takes_null or not column.null_count:
        return []
    return [Fault(to_mask(pc.is_null(column)), "null_in_non_nullable", _NULL_INSIDE)]


def _lift(faults: list[Fault], lengths: npt.NDArray[np.int32], what: str) -> Iterator[Fault]:
    """Yield the faults of elements as faults of the rows that hold them."""
    for fault in faults:
        rows: Mask = np.zeros(len(lengths), dtype=bool)
        rows[np.repeat(np.arange(len(lengths)), lengths)[fault.rows]] = True
        yield Fault(rows, fault.code, f"{what}{' ' if fault.message is _NULL_INSIDE else ': '}{fault.message}")


def _offsets(lengths: npt.NDArray[np.int32]) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
