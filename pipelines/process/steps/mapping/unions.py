"""Conversions into a Variant or a Dynamic, from JSON text: each value becomes the first of the types that takes it unchanged.

A union of Arrow is sent, and not a column of one type, of whose nulls ClickHouse makes 0 and '' in silence (measured, 26.9).
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.steps.mapping.convert import Converted, Fault
from pipelines.types.arrow_types import arrow_type
from pipelines.types.columns import ColumnType
from pipelines.types.unions import is_of_texts, members_of, most_exact_digits
from pipelines.types.vectors import Mask, to_mask

_BEGINS = {"String": '"', "Bool": "tf", "Array": "["}
"""The first characters of JSON texts by the name of a type, if they are not those of a number."""
ConvertTexts = Callable[[pa.Array, ColumnType], Converted]
"""Converts JSON texts, none of them null, to a type; a value that it does not take is a fault."""


def convert_union(texts: pa.Array, target: ColumnType, convert_texts: ConvertTexts) -> Converted:
    """Convert JSON texts to a union with a child for each member of `target`; null stays null. No member takes a row: a fault."""
    wire = arrow_type(target)
    members = members_of(target)
    open_rows = to_mask(pc.is_valid(texts))
    codes, offsets = np.zeros(len(texts), np.int8), np.zeros(len(texts), np.int32)
    begins = pc.utf8_slice_codeunits(texts, 0, 1)
    children = [pa.array([], field.type) for field in wire]
    for code, member in enumerate(members):
        rows = np.flatnonzero(open_rows & _begins_as(begins, member) & ~_changed(texts, member))
        if not len(rows):
            continue
        values, faults = convert_texts(texts.take(pa.array(rows)), member)
        refused = np.zeros(len(rows), dtype=bool)
        for fault in faults:
            refused |= fault.rows
        taken = rows[~refused]
        children[code] = _as(values.filter(pa.array(~refused)), wire.field(code).type)
        codes[taken], offsets[taken], open_rows[taken] = code, np.arange(len(taken)), False
    # A null, and a row without a member, is a null of the first type.
    nothing = np.flatnonzero(~to_mask(pc.is_valid(texts)) | open_rows)
    codes[nothing], offsets[nothing] = 0, len(children[0])
    children[0] = pa.concat_arrays([children[0], pa.nulls(1, children[0].type)]) if len(nothing) else children[0]
    union = pa.UnionArray.from_dense(pa.array(codes), pa.array(offsets), children, [field.name for field in wire])
    faults = [Fault(open_rows, "invalid_value", "none of its types takes the value unchanged")] if open_rows.any() else []
    return union, faults


def _begins_as(begins: pa.Array, member: ColumnType) -> Mask:
    """Return the rows whose first character may begin a value of the member: the others need not be tried."""
    return to_mask(pc.is_in(begins, pa.array([*_BEGINS.get(member.name, "-0123456789")])))


def _changed(texts: pa.Array, member: ColumnType) -> Mask:
    """Return the rows that would become another value: the text of a number, and a whole number that may not be exact as a float."""
    if is_of_texts(member):
        return np.zeros(len(texts), dtype=bool)
    changed = to_mask(pc.match_substring(texts, '"'))
    if digits := most_exact_digits(member):
        changed |= to_mask(pc.match_substring_regex(texts, rf"(?:^|[\[,])-?[0-9]{{{digits + 1},}}(?:$|[\],])"))
    return changed


def _as(column: pa.Array, wire: pa.DataType) -> pa.Array:
    """Return a column in a type that differs in the nullability of its elements; there are no nulls where it allows none."""
    if not pa.types.is_list(wire):
        return column
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    ends = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return pa.ListArray.from_arrays(ends, _as(pc.list_flatten(column), wire.value_type), type=wire)
