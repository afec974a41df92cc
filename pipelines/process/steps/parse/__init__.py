"""The first step, parse: raw records in, typed columns out.

In: a table of raw records (columns `key, value, headers, timestamp, oversize` and the position columns). Out: one column per field, named
by the field; array, object and map as minified JSON text, bytes as the UTF-8 bytes of a JSON string; null if the field is absent or JSON
null. Then the columns of the record beside its JSON (`columns`), the position columns and, on request, raw columns as `_tf_<name>`,
unchanged.

Guarantee: the outcome of a record depends on that record, the fields and the columns alone, never on its neighbors. No state is kept.

Rejected, by the first rule that applies, fields in their order, then columns:
- `oversize`: the record was too large to travel. `unreadable`: the Kafka client could not read it. `tombstone`: the value is null.
- `invalid_json`: not UTF-8, not JSON, not an object, or a key twice in the object itself or in an object on a field's path.
- `wrong_type`: another JSON type than the field's. An integer is accepted for a float; `1.0` is no integer, `"1"` no number. Or a column
  that is not UTF-8.
- `out_of_range`: an integer outside its type, or a number that is no finite float (`1e400`, `NaN`), also inside arrays and objects.

A dotted field is the literal key `"a.b"` if it is present and not null, else key `b` of object `a`; nothing if `a` is no object. Unknown
fields are ignored. The reader (DuckDB, yyjson) accepts a comma before a closing bracket, and NaN in a field that is not read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.rejections import Rejections
from pipelines.process.steps import Columns, Context, Rank, Step
from pipelines.process.steps.parse.columns import as_texts, read_columns
from pipelines.process.steps.parse.json_reader import reader_of
from pipelines.process.whole_records import without_lost_rows
from pipelines.protocol.outcomes import REJECTED
from pipelines.protocol.records import (
    MAX_RECORD_BYTES,
    POSITION_FIELDS,
    REFUSED_ROW_COLUMN,
    UNREADABLE_HEADER,
    StageOutput,
    empty_rejected,
)
from pipelines.types.engine import Engine
from pipelines.types.fields import ParsedField, check_fields
from pipelines.types.record_columns import RecordColumn
from pipelines.types.vectors import one_chunk, to_mask


@dataclass(frozen=True)
class Parse(Step):
    """`fields`: (name, source type) of each field of the JSON; `columns`: those of the record beside it."""

    name = "parse"
    stage = "parse"
    outcomes = (REJECTED,)
    rank = Rank.FIRST

    fields: tuple[tuple[str, str], ...]
    columns: tuple[RecordColumn, ...] = ()

    @classmethod
    def of_source(cls, source: Any) -> Self:
        """Return the step for a source of the file."""
        columns = tuple(RecordColumn(column.name, column.origin, column.header or "", column.type) for column in source.columns)
        return cls(tuple((field.name, field.type) for field in source.schema_fields), columns)

    def encode(self) -> dict[str, Any]:
        """Return the configuration as JSON values: columns only if there are some, so that other programs keep their version."""
        return {name: value for name, value in super().encode().items() if name != "columns" or value}

    @property
    def parsed_fields(self) -> Sequence[ParsedField]:
        return [ParsedField(name, kind) for name, kind in self.fields]

    def columns_out(self, columns_in: Columns) -> Columns:
        if faults := check_fields(self.parsed_fields):
            raise ValueError("; ".join(faults))
        return {**dict(self.fields), **{column.name: column.type for column in self.columns}}

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        keep = [name for name in rows.column_names if f"_tf_{name}" in context.carried]
        tried = without_lost_rows(rows) if REFUSED_ROW_COLUMN not in context.carried else StageOutput(rows, empty_rejected())
        parsed = parse(context.engine, tried.accepted, self.parsed_fields, keep, self.columns)
        return StageOutput(parsed.accepted, pa.concat_tables([tried.rejected, parsed.rejected]))


def parse(
    engine: Engine, records: pa.Table, fields: Sequence[ParsedField], keep: Sequence[str] = (), columns: Sequence[RecordColumn] = ()
) -> StageOutput:
    """Return the records as columns, and the records that cannot be read; both in the order of `records`.

    `keep` names raw columns that are passed through as `_tf_<name>`. Raise ValueError for fields in which `check_fields` finds a fault.
    """
    reader = reader_of(tuple(fields))
    rejections = Rejections("parse", records.num_rows)
    texts = _texts(engine, records, rejections)
    read = [*reader.read(engine, texts, rejections), *read_columns(engine, records, columns, rejections)]
    carried = [(field.name, records[field.name]) for field in POSITION_FIELDS] + [(f"_tf_{name}", records[name]) for name in keep]
    names = [*(field.name for field in fields), *(column.name for column in columns), *(name for name, _ in carried)]
    return rejections.split(records, pa.table([*read, *(column for _, column in carried)], names=names))


def _texts(engine: Engine, records: pa.Table, rejections: Rejections) -> pa.Array:
    """Return the values as strings; null, with its reason noted, if a value is missing or not UTF-8."""
    _refuse_oversize(records, rejections)
    values = one_chunk(records["value"])
    if values.null_count:
        rejections.note(to_mask(pc.is_null(values)), "tombstone", None, "the value is null")
    if rejections.any:
        values = pc.if_else(pa.array(rejections.open), values, pa.scalar(None, values.type))
    texts, bad = as_texts(engine, values)
    rejections.note(bad, "invalid_json", None, "the value is not UTF-8")
    return texts


def _refuse_oversize(records: pa.Table, rejections: Rejections) -> None:
    """Reject records that did not travel unchanged: too large, or unreadable, which their only header says."""
    oversize = records["oversize"]
    if oversize.null_count == len(oversize):
        return
    rows = np.flatnonzero(to_mask(pc.is_valid(oversize)))
    reasons = pc.map_lookup(one_chunk(records["headers"]).take(pa.array(rows)), pa.scalar(UNREADABLE_HEADER), "first").to_pylist()
    unreadable = [(row, error) for row, error in zip(rows, reasons, strict=True) if error is not None]
    if unreadable:
        text = "the Kafka client could not give the record ({}): is the name of a header not UTF-8?"
        messages = [text.format(error.decode()) for _, error in unreadable]
        rejections.note_each(np.array([row for row, _ in unreadable]), "unreadable", None, messages)
    sizes = pc.struct_field(oversize, "bytes").take(pa.array(rows)).to_pylist()
    messages = [f"the record has {size} bytes, more than the limit of {MAX_RECORD_BYTES}" for size in sizes]
    rejections.note_each(rows, "oversize", None, messages)


STEP = Parse
