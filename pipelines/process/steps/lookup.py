"""The step that adds fields from a table by a key: its answer is a function of the record and of the snapshot that the plan names.

The program names the table and what is read of it, not the snapshot: a refresh changes no version. Whoever runs a program for a plan gives
each step the plan's snapshot first (`Program.with_snapshots`).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from pipelines.errors import HaltError
from pipelines.expressions.messages import inputs_of
from pipelines.key_store.payload import NO_ROW
from pipelines.lookups.snapshot import Snapshot
from pipelines.lookups.spec import Column, Range, TableSpec, key_type, range_type
from pipelines.process.rejections import Rejections
from pipelines.process.steps import Columns, Context, Step
from pipelines.protocol.outcomes import REJECTED, register
from pipelines.protocol.records import StageOutput
from pipelines.types.columns import quote_identifier
from pipelines.types.fields import SOURCE_TYPES

DROPPED_BY_LOOKUP = register("lookup", "dropped by look-up")
SnapshotOpener = Callable[[], Snapshot]
"""Opens the snapshot of a plan, at its first use: verification has those of many plans."""


@dataclass(frozen=True)
class KeyField:
    """A field of the record, with its type, and the column of the table that must equal it."""

    column: str
    field: str
    type: str


@dataclass(frozen=True)
class RangeField:
    """A field of the record, with its type, and the columns of the table between which it must lie."""

    begin: str
    end: str
    field: str
    type: str
    includes_end: bool = True


@dataclass(frozen=True)
class MadeField:
    """A column of the table, and the field that it becomes, with its type."""

    column: str
    field: str
    type: str


@dataclass(frozen=True)
class Lookup(Step):
    """`table`: its name in the file. `missing`: what becomes of a record without a row. `snapshot`: that of a plan, which is not stored."""

    name = "lookup"
    stage = "lookup"
    outcomes = (DROPPED_BY_LOOKUP, REJECTED)

    table: str
    key: tuple[KeyField, ...]
    between: RangeField | None
    fields: tuple[MadeField, ...]
    missing: Literal["null", "reject", "drop"]
    snapshot: SnapshotOpener | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of_file(cls, config: Any, fields: Mapping[str, str], units: Mapping[str, str]) -> Self:
        table = config.of_table
        between = table.range_of_key
        names = config.key[:-1] if between else config.key
        key = tuple(KeyField(column, name, fields[name]) for column, name in zip(table.columns_of_key, names, strict=True))
        found = None
        if between:
            begin, end = between.between
            found = RangeField(begin, end, config.key[-1], fields[config.key[-1]], between.includes_end)
        return cls(config.table, key, found, tuple(MadeField(one.name, one.field, one.type) for one in config.fields), config.missing)

    def __post_init__(self) -> None:
        """Raise ValueError for a look-up that cannot be: a writer to the ledger must not decide more than one."""
        quote_identifier(self.table)
        if not self.key and self.between is None:
            raise ValueError(f"the look-up in {self.table!r} has no key")
        for one in self.fields:
            if one.type not in SOURCE_TYPES or one.field.startswith("_tf_"):
                raise ValueError(f"the look-up in {self.table!r}: {one.field!r} as {one.type!r} is no field")
        assert self.spec.shape

    @property
    def spec(self) -> TableSpec:
        """The key and the columns that are read of the table."""
        key = tuple(Column(one.column, key_type(one.field, one.type)) for one in self.key)
        columns = {Column(one.column, one.type) for one in self.fields}
        found, within = None, self.between
        if within is not None:
            found = Range(within.begin, within.end, range_type(within.field, within.type), within.includes_end)
        return TableSpec(key, found, tuple(sorted(columns, key=lambda one: one.name)))

    def encode(self) -> dict[str, Any]:
        # Not to be copied with the others: it may hold a whole table.
        record = {"step": self.name, **asdict(replace(self, snapshot=None))}
        del record["snapshot"]
        return record

    @property
    def key_fields(self) -> tuple[tuple[str, str], ...]:
        """The fields of the key, with their types."""
        within = ((self.between.field, self.between.type),) if self.between else ()
        return (*((one.field, one.type) for one in self.key), *within)

    def fields_read(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.key_fields)

    def columns_out(self, columns_in: Columns) -> Columns:
        for name, kind in self.key_fields:
            if columns_in.get(name) != kind:
                raise ValueError(f"the look-up in {self.table!r} reads {name!r} as {kind}, which is {columns_in.get(name, 'no field')}")
        return {**columns_in, **{one.field: one.type for one in self.fields}}

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        snapshot = self._opened()
        key = [rows.column(one.field) for one in self.key]
        at = rows.column(self.between.field) if self.between else None
        found = snapshot.find(context.engine, key, at)
        is_missing = found == NO_ROW
        dropped = 0
        rejections = Rejections(self.stage, rows.num_rows)
        if self.missing != "null" and is_missing.any():
            if self.missing == "drop":
                dropped = int(is_missing.sum())
                rows, found = rows.filter(pa.array(~is_missing)), found[~is_missing]
                rejections = Rejections(self.stage, rows.num_rows)
            else:
                self._reject(rejections, rows, np.flatnonzero(is_missing))
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        columns |= {one.field: snapshot.take(one.column, found) for one in self.fields}
        output = rejections.split(rows, pa.table(columns))
        return StageOutput(output.accepted, output.rejected, {DROPPED_BY_LOOKUP.total: dropped})

    def _reject(self, rejections: Rejections, rows: pa.Table, missing: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
        names = [name for name, _ in self.key_fields]
        inputs = inputs_of(rows.select(names).take(pa.array(missing)), names)
        messages = [f"table {self.table} has no row{read}" for read in inputs]
        rejections.note_each(missing, "lookup_missing", names[0] if len(names) == 1 else None, messages)

    def _opened(self) -> Snapshot:
        if self.snapshot is None:
            raise HaltError(f"looking up in table {self.table}: no snapshot was given; this is a bug, report it with the log")
        snapshot = self.snapshot()
        if snapshot.spec.key != self.spec.key or snapshot.spec.between != self.spec.between:
            raise HaltError(f"looking up in table {self.table}: the snapshot has another key; only Tallyflow may write to its streams")
        return snapshot


STEP = Lookup
