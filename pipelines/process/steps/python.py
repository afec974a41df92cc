"""The step that calls a function of the user's own: its outputs become fields, and the records that it leaves out are dropped.

With `rows: many` a record may become several rows (`whole_records`).

The program names the function's code by its digest, so that a plan is finished with the code with which it was begun.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import pyarrow as pa

from pipelines.errors import HaltError
from pipelines.functions.spec import Function, Mode, versions
from pipelines.process.rejections import Rejections
from pipelines.process.steps import Columns, Context, Step
from pipelines.process.whole_records import numbers_of_rows, wanted_rows
from pipelines.protocol.outcomes import REJECTED, register
from pipelines.protocol.records import EMIT_FIELD, REFUSED_ROW_COLUMN, StageOutput
from pipelines.types.fields import ParsedField, check_fields

if TYPE_CHECKING:
    from pipelines.functions.calls import Called

DROPPED_BY_FUNCTION = register("function", "dropped by function")


@dataclass(frozen=True)
class Python(Step):
    """`function`, `code`, `mode`, `inputs`, `outputs` and `timeout_ms` are those of a `Function`.

    `python` and `pyarrow`: the versions under which the program was compiled; another one halts the step. `rows`: how many of a record.
    """

    name = "python"
    stage = "python"
    modes: ClassVar[tuple[Mode, ...]] = ("batch", "row")
    outcomes = (DROPPED_BY_FUNCTION, REJECTED)

    function: str
    code: str
    mode: Mode
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    timeout_ms: int
    python: str
    pyarrow: str
    rows: Literal["one", "many"] = field(default="one", kw_only=True)

    @classmethod
    def of_file(cls, config: Any, fields: Mapping[str, str], units: Mapping[str, str]) -> Self:
        from pipelines.functions.calls import HOSTS

        inputs = tuple((name, fields[name]) for name in config.input or fields)
        outputs = tuple((output.name, output.type) for output in config.output)
        timeout_ms = config.timeout // timedelta(milliseconds=1)
        mode = getattr(config, "mode", cls.modes[0])
        rows: Literal["one", "many"] = getattr(config, "rows", "one")
        made = cls(config.function, config.packed(), mode, inputs, outputs, timeout_ms, *cls.versions_here(), rows=rows)
        HOSTS.check(made.called)
        return made

    def __post_init__(self) -> None:
        """Raise ValueError for what may not be called: a writer to the ledger must not decide more than a function."""
        if self.mode not in self.modes:
            raise ValueError(f"{self.function}: mode {self.mode!r} is none of {self.name}")
        if faults := check_fields([ParsedField(name, kind) for name, kind in self.called.outputs if kind != "timestamp"]):
            raise ValueError("; ".join(faults))

    @property
    def called(self) -> Function:
        return Function(self.function, self.code, self.mode, self.inputs, self.outputs, self.timeout_ms, self.makes_several)

    @property
    def makes_several(self) -> bool:
        return self.rows == "many"

    @property
    def carried(self) -> tuple[str, ...]:
        return (REFUSED_ROW_COLUMN,) if self.makes_several else ()

    def encode(self) -> dict[str, Any]:
        """Return the configuration as JSON values: `rows` only if it is many, so that other programs keep their version."""
        return {name: value for name, value in super().encode().items() if name != "rows" or self.makes_several}

    @property
    def archives(self) -> frozenset[str]:
        return frozenset({self.code})

    def fields_read(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.inputs)

    def columns_out(self, columns_in: Columns) -> Columns:
        for name, kind in self.inputs:
            if columns_in.get(name) != kind:
                raise ValueError(f"{self.function} reads {name!r} as {kind}, which is {columns_in.get(name, 'no field')}")
        return {**columns_in, **dict(self.outputs)}

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        from pipelines.functions.calls import HOSTS

        self._check_versions()
        called = HOSTS.call(self.called, rows)
        rejections = Rejections(self.stage, rows.num_rows)
        rejections.note_all(called.failures)
        if self.makes_several:
            return self._several(rows, called, rejections)
        kept = rows if len(called.passed) == rows.num_rows else rows.take(pa.array(called.passed))
        rejected = rejections.split(rows, rows).rejected
        dropped = rows.num_rows - kept.num_rows - rejected.num_rows
        return StageOutput(_with_outputs(kept, called.outputs), rejected, {DROPPED_BY_FUNCTION.total: dropped})

    def _several(self, rows: pa.Table, called: "Called", rejections: Rejections) -> StageOutput:
        """Return the rows that were made, with their numbers; who calls counts the records."""
        emits = numbers_of_rows(called.passed)
        stays = wanted_rows(rows, called.passed, emits, rejections, self.function)
        kept = rows.take(pa.array(called.passed)).select([name for name in rows.column_names if name != REFUSED_ROW_COLUMN])
        made = _with_outputs(kept, called.outputs).append_column(EMIT_FIELD, emits)
        made = made if stays.all() else made.filter(pa.array(stays))
        return StageOutput(made, rejections.split(rows, rows).rejected, {DROPPED_BY_FUNCTION.total: 0})

    @classmethod
    def versions_here(cls) -> tuple[str, ...]:
        """Return the versions that a plan is finished with, in the order of the fields that name them."""
        return versions()

    @property
    def planned_versions(self) -> tuple[str, ...]:
        return self.python, self.pyarrow

    def _check_versions(self) -> None:
        here = self.versions_here()
        if self.planned_versions != here:
            raise HaltError(
                f"calling function {self.function}: its records were planned under {_named(self.planned_versions)}, this is "
                f"{_named(here)}, which may give other values. Run it once under the versions before, with --until-caught-up; "
                "every worker needs the same versions"
            )


def _with_outputs(rows: pa.Table, outputs: pa.Table) -> pa.Table:
    return pa.table(dict(zip((*rows.column_names, *outputs.column_names), (*rows.columns, *outputs.columns), strict=True)))


def _named(versions: Sequence[str]) -> str:
    return " with ".join(f"{name} {version}" for name, version in zip(("Python", "pyarrow", "pyspark"), versions, strict=False))


STEP = Python
