"""The step that calls a function of the user's own: its outputs become fields, and the records that it leaves out are dropped.

The program names the function's code by its digest, so that a plan is finished with the code with which it was begun.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self

import pyarrow as pa

from pipelines.errors import HaltError
from pipelines.functions.spec import Function, Mode, versions
from pipelines.process.rejections import Rejections
from pipelines.process.steps import Columns, Context, Step
from pipelines.protocol.outcomes import REJECTED, register
from pipelines.protocol.records import StageOutput
from pipelines.types.fields import ParsedField, check_fields

DROPPED_BY_FUNCTION = register("function", "dropped by function")


@dataclass(frozen=True)
class Python(Step):
    """`function`, `code`, `mode`, `inputs`, `outputs` and `timeout_ms` are those of a `Function`.

    `python` and `pyarrow`: the versions under which the program was compiled; another one halts the step.
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

    @classmethod
    def of_file(cls, config: Any, fields: Mapping[str, str], units: Mapping[str, str]) -> Self:
        from pipelines.functions.calls import HOSTS
        from pipelines.functions.code import pack

        inputs = tuple((name, fields[name]) for name in config.input or fields)
        outputs = tuple((output.name, output.type) for output in config.output)
        digest = pack(config.directory, config.function.partition(":")[0], config.files)
        timeout_ms = config.timeout // timedelta(milliseconds=1)
        made = cls(config.function, digest, getattr(config, "mode", cls.modes[0]), inputs, outputs, timeout_ms, *cls.versions_here())
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
        return Function(self.function, self.code, self.mode, self.inputs, self.outputs, self.timeout_ms)

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
        kept = rows if len(called.passed) == rows.num_rows else rows.take(pa.array(called.passed))
        columns = dict(zip(kept.column_names, kept.columns, strict=True))
        columns |= dict(zip(called.outputs.column_names, called.outputs.columns, strict=True))
        rejections = Rejections(self.stage, rows.num_rows)
        rejections.note_all(called.failures)
        rejected = rejections.split(rows, rows).rejected
        dropped = rows.num_rows - kept.num_rows - rejected.num_rows
        return StageOutput(pa.table(columns), rejected, {DROPPED_BY_FUNCTION.total: dropped})

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


def _named(versions: Sequence[str]) -> str:
    return " with ".join(f"{name} {version}" for name, version in zip(("Python", "pyarrow", "pyspark"), versions, strict=False))


STEP = Python
