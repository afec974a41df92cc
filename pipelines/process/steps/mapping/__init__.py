"""The last step: fields to the columns of each table (`columns`), for the sinks that take the record.

A record that one of its tables does not take is rejected whole: no sink has a row of it. In a program with one sink that takes all records
the rows have the table's columns; else, before `MapToTables.rows_for`, those of every table, and which sinks take them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.computed import Stored, where
from pipelines.process.steps import Columns, Context, Rank, Step
from pipelines.process.steps.mapping.columns import TargetColumn, check_mapping, map_columns, reject_wide
from pipelines.protocol.outcomes import MADE, REJECTED, WRITTEN, register, routed_to
from pipelines.protocol.positions import CAUSE_COLUMNS, is_first_row, position_keys
from pipelines.protocol.records import EMIT_FIELD, POSITION_COLUMNS, StageOutput, empty_rejected
from pipelines.protocol.topology import SINK
from pipelines.types.columns import parse_type, quote_identifier, value_type
from pipelines.types.fields import ParsedField
from pipelines.types.vectors import Mask, Numbers

UNROUTED = register("unrouted", "taken by no sink")
SINK_COLUMN = "_tf_sink"
"""The sink leg that refused a record before it was redriven: it alone takes the record now. Null for all others. Often absent."""
_ROW = "_tf_row"


class MappedColumn(NamedTuple):
    """A field and its column. `has_default`: the table gives the column a DEFAULT. `unit`: that of a number since 1970, or a format."""

    field: str
    name: str
    type: str
    has_default: bool
    unit: str = ""


@dataclass(frozen=True)
class MapToTable:
    """The columns of one table, in their order, then the `position_columns` that it has.

    `leg`: the sink leg that writes it. `when`: the condition of the records that it takes, None for all. `is_default`: it takes those that
    no other table takes. `refused_by`: it takes the rows that this sink leg has refused, and no others.
    """

    columns: tuple[MappedColumn, ...]
    database: str
    table: str
    position_columns: tuple[str, ...]
    leg: str = SINK
    when: Stored | None = None
    is_default: bool = False
    refused_by: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for names and types that may not be placed in a statement: a writer to the ledger must not decide an INSERT."""
        for name in (self.database, self.table, *self.insert_columns):
            quote_identifier(name)
        for column in self.columns:
            parse_type(column.type)
        if self.when is not None and self.when.expression.type != "bool":
            raise ValueError(f"{self.when.text!r} is no condition")
        if (self.when is not None) + self.is_default + bool(self.refused_by) > 1:
            raise ValueError("a table that is the default, or takes refused rows, has a condition")

    @cached_property
    def targets(self) -> list[TargetColumn]:
        return [TargetColumn(one.field, one.name, value_type(one.type), one.has_default, one.unit) for one in self.columns]

    @property
    def insert_columns(self) -> list[str]:
        return [*(column.name for column in self.columns), *self.position_columns]

    @property
    def widening(self) -> int:
        """The number of columns to which a field may be written: rows may take as many times the size of their records."""
        return max(Counter(column.field for column in self.columns).values(), default=1)

    def fields_read(self) -> frozenset[str]:
        return frozenset(column.field for column in self.columns) | (self.when.fields if self.when else frozenset())

    def check(self, columns: Columns) -> None:
        """Raise ValueError unless `columns` has the fields, and they can become the table's columns."""
        if faults := check_mapping([ParsedField(name, kind) for name, kind in columns.items()], self.targets):
            raise ValueError("; ".join(faults))
        if self.when is not None:
            self.when.check_inputs(columns)


@dataclass(frozen=True)
class _Taken:
    """The rows of one table. `numbers`: of their records in the batch, ascending.

    `rejected`: the records that the table does not take, and `closed`, which of the batch they are.
    """

    rows: pa.Table
    numbers: Numbers
    rejected: pa.Table
    closed: Mask


@dataclass(frozen=True)
class MapToTables(Step):
    """The tables, in the order of their sinks."""

    name = "mapping"
    stage = "transform"
    outcomes = (UNROUTED, REJECTED)
    rank = Rank.LAST

    tables: tuple[MapToTable, ...]

    def __post_init__(self) -> None:
        """Raise ValueError without a table, for two of one leg, and for two defaults."""
        if not self.tables or len({table.leg for table in self.tables}) < len(self.tables):
            raise ValueError("the mapping needs tables, one for each sink")
        if sum(table.is_default for table in self.tables) > 1:
            raise ValueError("the mapping has two default tables")
        refusers = [table.refused_by for table in self.tables if table.refused_by]
        if len({*refusers}) < len(refusers) or not {*refusers} <= {table.leg for table in self.routed}:
            raise ValueError("a table takes the refused rows of no table, or of one that another takes")

    @cached_property
    def routed(self) -> tuple[MapToTable, ...]:
        """The tables to which records are mapped here: all but those of refused rows."""
        return tuple(table for table in self.tables if not table.refused_by)

    def fallback_of(self, leg: str) -> MapToTable | None:
        """Return the table that takes the rows refused by a sink leg."""
        return next((table for table in self.tables if table.refused_by == leg), None)

    @property
    def routes(self) -> bool:
        """Whether sinks differ in what they take."""
        return len(self.routed) > 1 or self.routed[0].when is not None

    @property
    def drops(self) -> bool:
        return all(table.when is not None for table in self.routed)

    @property
    def carried(self) -> tuple[str, ...]:
        return (SINK_COLUMN,) if self.routes else ()

    @property
    def widening(self) -> int:
        return sum(table.widening for table in self.routed)

    def fields_read(self) -> frozenset[str]:
        return frozenset[str]().union(*(table.fields_read() for table in self.routed))

    def columns_out(self, columns_in: Columns) -> Columns:
        for table in self.routed:
            table.check(columns_in)
        return {self._label(number, one.name): one.type for number, table in enumerate(self.routed) for one in table.columns}

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        keep = [name for name in context.carried if name in rows.column_names]
        if not self.routes:
            mapped = map_columns(context.engine, rows, self.routed[0].targets, keep)
            fitting = reject_wide(mapped.accepted)
            return StageOutput(fitting.accepted, pa.concat_tables([mapped.rejected, fitting.rejected]))
        is_open, is_taken = np.ones(rows.num_rows, dtype=bool), np.zeros(rows.num_rows, dtype=bool)
        numbered, by_leg = rows.append_column(_ROW, pa.array(np.arange(rows.num_rows))), dict[str, _Taken]()
        # The default last: it takes what the others leave.
        for table in sorted(self.routed, key=lambda table: table.is_default):
            candidates = is_open & ~is_taken if table.is_default else is_open
            by_leg[table.leg] = one = _taken(context, table, self.redriven_for(table), numbered, candidates)
            is_open[one.closed] = False
            is_taken[one.numbers] = True
        taken = [by_leg[table.leg] for table in self.routed]
        rejected = pa.concat_tables([one.rejected for one in taken])
        together = self._together(rows, keep, taken, np.flatnonzero(is_open & is_taken))
        return StageOutput(together, rejected, {UNROUTED.total: int((is_open & ~is_taken).sum())})

    def _together(self, rows: pa.Table, keep: Sequence[str], taken: Sequence[_Taken], numbers: Numbers) -> pa.Table:
        """Return the rows of the records of these `numbers`: the columns of every table, null where its sink does not take the record."""
        records = rows if len(numbers) == rows.num_rows else rows.take(pa.array(numbers))
        positions = [name for name in POSITION_COLUMNS if name in rows.column_names]
        columns = {name: records.column(name) for name in (*positions, *keep)}
        columns.setdefault(EMIT_FIELD.name, pa.array(np.zeros(len(numbers), dtype=np.uint32)))
        for number, one in enumerate(taken):
            places = np.searchsorted(one.numbers, numbers)
            is_taken = places < len(one.numbers)
            is_taken[is_taken] = one.numbers[places[is_taken]] == numbers[is_taken]
            columns[self._label(number)] = pa.array(is_taken)
            whole = is_taken.all() and len(one.numbers) == len(numbers)
            indices = None if whole else pa.array(places, mask=~is_taken)
            for column in self.routed[number].columns:
                values = one.rows.column(column.name)
                columns[self._label(number, column.name)] = values if indices is None else values.take(indices)
        return pa.table(columns)

    def _label(self, number: int, column: str = "") -> str:
        """Return the name of a table's column among those of all tables; without `column`, of the one that says which records it takes."""
        return f"{number}.{column}" if self.routes else column

    def redriven_for(self, table: MapToTable) -> list[str]:
        """Return the sink legs whose dead letters, redriven, are for a table: its own, and that of its fallback."""
        fallback = self.fallback_of(table.leg)
        return [table.leg, *([fallback.leg] if fallback else [])]

    def rows_for(self, rows: pa.Table, leg: str) -> pa.Table:
        """Return the rows that a sink takes, with its table's columns, then the position columns; of `rows` as `apply` gives them."""
        if not self.routes:
            return rows
        number = next(number for number, table in enumerate(self.routed) if table.leg == leg)
        names = [column.name for column in self.routed[number].columns]
        places = [*POSITION_COLUMNS, *(name for name in CAUSE_COLUMNS if name in rows.column_names)]
        mine = rows.select([*(self._label(number, name) for name in names), *places])
        mine, is_taken = mine.rename_columns([*names, *places]), rows.column(self._label(number))
        # Where the sink takes all, nothing is copied.
        return mine if pc.all(is_taken).as_py() in (True, None) else mine.filter(is_taken)

    def counts(self, rows: pa.Table) -> dict[str, int]:
        """Count the rows, as `apply` gives them, in position order.

        Count those behind the first ones of their records, too, if there are some, and those that each sink takes, if they differ.
        """
        made = rows.num_rows - int(is_first_row(rows).sum()) if pc.max(rows.column(EMIT_FIELD.name)).as_py() else 0
        counts = {WRITTEN.total: rows.num_rows, **({MADE: made} if made else {})}
        if not self.routes:
            return counts
        takes = {table.leg: rows.column(self._label(number)) for number, table in enumerate(self.routed)}
        return {**counts, **{routed_to(leg): int(pc.sum(mask).as_py() or 0) for leg, mask in takes.items()}}


def _taken(context: Context, table: MapToTable, redriven_for: Sequence[str], rows: pa.Table, is_open: Mask) -> _Taken:
    """Map the records that are open and that the sink takes; reject those that it cannot judge, or that its table does not take."""
    mine = rows if is_open.all() else rows.filter(pa.array(is_open))
    if SINK_COLUMN in mine.column_names:
        is_others = pc.invert(pc.is_in(mine.column(SINK_COLUMN), pa.array(redriven_for)))
        mine = mine.filter(pc.invert(pc.and_(pc.is_valid(mine.column(SINK_COLUMN)), is_others)))
    judged = where(context.engine, mine, table.when, MapToTables.stage) if table.when is not None else StageOutput(mine, empty_rejected())
    mapped = map_columns(context.engine, judged.accepted, table.targets, [_ROW])
    fitting = reject_wide(mapped.accepted)
    numbers = fitting.accepted.column(_ROW).to_numpy()
    rejected = pa.concat_tables([judged.rejected, mapped.rejected, fitting.rejected])
    closed = np.isin(position_keys(rows), position_keys(rejected)) if rejected.num_rows else np.zeros(rows.num_rows, dtype=bool)
    return _Taken(fitting.accepted, numbers, rejected, closed)


STEP = MapToTables
