"""Programs of literal parts, for tests that need no pipeline file."""

from collections.abc import Sequence
from typing import Any

from pipelines.process.program import RELEASE, Program
from pipelines.process.steps import Step
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.mapping import MappedColumn, MapToTable, MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.protocol.records import POSITION_COLUMNS

Fields = Sequence[tuple[str, str]]
Columns = Sequence[Sequence[Any]]


def program(
    fields: Fields,
    columns: Columns,
    *between: Step,
    source: str = "orders",
    topic: str = "orders",
    buckets: int = 8,
    table: str = "t",
    position_columns: Sequence[str] = POSITION_COLUMNS,
) -> Program:
    """Return parse, the steps `between`, and the mapping. `fields`: (name, source type); `columns`: as of `MappedColumn`."""
    mapping = MapToTable(tuple(MappedColumn(*column) for column in columns), "db", table, tuple(position_columns))
    return Program(RELEASE, source, topic, buckets, (Parse(tuple(fields)), *between, MapToTables((mapping,))))


def first_of(key: str, window_us: int, **more: Any) -> Dedup:
    """Return the dedup step of one field."""
    return Dedup((key,), window_us, **more)
