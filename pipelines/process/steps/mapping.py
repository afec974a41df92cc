"""The last step: fields to the columns of the table (`process.mapping`), and the name of the table."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from pipelines.process.mapping.step import TargetColumn, check_mapping, map_columns, reject_wide
from pipelines.process.steps import Columns, Context, Rank, Step
from pipelines.protocol.outcomes import REJECTED
from pipelines.protocol.records import StageOutput
from pipelines.types.columns import parse_type, quote_identifier, value_type
from pipelines.types.fields import ParsedField


class MappedColumn(NamedTuple):
    """A field and its column. `has_default`: the table gives the column a DEFAULT. `unit`: the unit of a number since 1970."""

    field: str
    name: str
    type: str
    has_default: bool
    unit: str = ""


@dataclass(frozen=True)
class MapToTable(Step):
    """The written columns, in their order, then the `position_columns` that the table has."""

    name = "mapping"
    stage = "transform"
    outcomes = (REJECTED,)
    rank = Rank.LAST

    columns: tuple[MappedColumn, ...]
    database: str
    table: str
    position_columns: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for names and types that may not be placed in a statement: a writer to the ledger must not decide an INSERT."""
        for name in (self.database, self.table, *self.insert_columns):
            quote_identifier(name)
        for column in self.columns:
            parse_type(column.type)

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
        return frozenset(column.field for column in self.columns)

    def columns_out(self, columns_in: Columns) -> Columns:
        if faults := check_mapping([ParsedField(name, kind) for name, kind in columns_in.items()], self.targets):
            raise ValueError("; ".join(faults))
        return {column.name: column.type for column in self.columns}

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        keep = [name for name in context.carried if name in rows.column_names]
        mapped = map_columns(context.engine, rows, self.targets, keep)
        fitting = reject_wide(mapped.accepted, context.widest_bytes)
        return StageOutput(fitting.accepted, pa.concat_tables([mapped.rejected, fitting.rejected]))


STEP = MapToTable
