"""Programs of literal parts, for tests that need no pipeline file."""

from collections.abc import Sequence
from typing import Any

from pipelines.process.program import RELEASE, Lane, Program
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
    return of_steps((Parse(tuple(fields)), *between, MapToTables((mapping,))), buckets, source, topic)


def of_steps(steps: Sequence[Step], buckets: int = 8, source: str = "orders", topic: str = "orders") -> Program:
    """Return the program of one source with these steps, of which the first is parse."""
    return Program(RELEASE, buckets, (Lane(source, topic, tuple(steps[:1])),), tuple(steps[1:]))


def union(*lanes: tuple[str, Sequence[Step]], shared: Sequence[Step], buckets: int = 8) -> Program:
    """Return the program of several sources: (id, own steps) each, and the steps that follow. A topic is named as its source."""
    return Program(RELEASE, buckets, tuple(Lane(source, source, tuple(steps)) for source, steps in lanes), tuple(shared))


def first_of(key: str, window_us: int, **more: Any) -> Dedup:
    """Return the dedup step of one field."""
    return Dedup((key,), window_us, **more)
