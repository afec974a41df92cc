"""Programs of the verification's unit tests: without dedup, by arrival, by the time of the event."""

from pipelines.process.program import Program
from pipelines.process.steps import Step
from pipelines.process.steps.dedup import Dedup
from support.programs import program

SECOND = 1_000_000
FIELDS = (("id", "int"), ("a.b", "string"), ("at", "int"))
COLUMNS = (("id", "id", "Nullable(Int64)", False), ("a.b", "name", "String", False))


def of(*between: Step, fields: tuple[tuple[str, str], ...] = FIELDS, columns: tuple[tuple[str, str, str, bool], ...] = COLUMNS) -> Program:
    return program(fields, columns, *between, source="events", position_columns=("_tf_sequence", "_tf_ordinal"))


CONFIG = of()
KEYED = of(Dedup(("id",), 10 * SECOND))
TIMED = of(Dedup(("id",), 10 * SECOND, time_field="at", lateness_us=3 * SECOND, max_ahead_us=3_600 * SECOND))
