"""The steps of the process leg: the protocol of a step, the kinds of steps, and the one loop that takes records through a list of them.

A step is data with behavior: a frozen dataclass whose fields are its configuration, which is stored as JSON and read back with every value
checked. Each kind is a module of this package, or a folder, with a `STEP`, found by walking the package. A new kind is four files: its
module here, its model in `config/transforms`, its statement in `sql/reference/steps`, and its test.

A step without state decides about a record from that record alone. A step with state per bucket has a part before the exchange, `apply`,
which finds the key, and a part after it, which its users know by its type.
"""

import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum, IntEnum
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Protocol, Self

import pyarrow as pa
from pydantic import ConfigDict, TypeAdapter

from pipelines.host import is_of_host
from pipelines.process.drop_marks import marked
from pipelines.process.isolation import Search, Stage
from pipelines.process.whole_records import are_several, of_records
from pipelines.protocol.outcomes import REJECTED, Outcome, check_registered
from pipelines.protocol.records import StageOutput
from pipelines.types.engine import Engine

Columns = Mapping[str, str]
"""Types of columns by name: source types (`types.fields.SOURCE_TYPES`) before the mapping, column types of ClickHouse after it."""


@dataclass(frozen=True)
class Passed:
    """What some steps have made of records: as `StageOutput`, and the records that are dropped if dedup accepts them (`drop_marks`)."""

    accepted: pa.Table
    rejected: pa.Table
    dropped: Mapping[str, int]
    marked: Sequence[pa.Table]


class State(Enum):
    """The state that a step keeps between batches."""

    NONE = "none"
    PER_BUCKET = "per bucket"


class Rank(IntEnum):
    """The place of a kind of step in a program: once at each end, and between the ends as the file says."""

    FIRST = 0
    TRANSFORM = 1
    LAST = 2


@dataclass(frozen=True)
class Context:
    """The input of a step besides the rows.

    `carried`: columns that must reach the exchange, if the rows have them.
    """

    engine: Engine
    carried: tuple[str, ...] = ()


class Step(Protocol):
    """One step. Rows keep their order, and their position columns stay unchanged.

    `name`: in files, programs, and of its reference statement. `stage`: in dead letters. `outcomes`: the outcomes with which a record may
    end here, each registered.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)
    name: ClassVar[str]
    stage: ClassVar[str]
    outcomes: ClassVar[tuple[Outcome, ...]]
    state: ClassVar[State] = State.NONE
    rank: ClassVar[Rank] = Rank.TRANSFORM

    @classmethod
    def of_file(cls, config: Any, fields: Mapping[str, str], units: Mapping[str, str]) -> Self:
        """Return the step for the `config` of a transform of the file.

        `fields`: the types of the fields before it; `units`: the units since 1970 of those that have one. Raise ValueError for a
        configuration that does not fit them.
        """
        raise TypeError(f"step {cls.name!r} is no transform")

    @property
    def carried(self) -> tuple[str, ...]:
        """The columns that its part after the exchange needs."""
        return ()

    @property
    def drops(self) -> bool:
        """Whether records may end here without being rejected."""
        return any(outcome != REJECTED for outcome in self.outcomes)

    @property
    def makes_several(self) -> bool:
        """Whether it may make several rows of a record; behind it `_tf_emit` numbers them."""
        return False

    @property
    def archives(self) -> frozenset[str]:
        """The digests of the code that the step runs (`functions.code`), besides ours."""
        return frozenset()

    def encode(self) -> dict[str, Any]:
        """Return the configuration as JSON values."""
        return {"step": self.name, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def decode(cls, record: Mapping[str, Any]) -> Self:
        """Return the step that `encode` has written. Raise ValueError for anything else, whatever its origin."""
        made: Self = _adapter(cls).validate_json(_ENCODER.dump_json({name: value for name, value in record.items() if name != "step"}))
        return made

    def fields_read(self) -> frozenset[str]:
        """Return the columns of the input rows that the step reads, besides positions."""
        return frozenset()

    def columns_out(self, columns_in: Columns) -> Columns:
        """Return the columns after the step. Raise ValueError for a configuration that does not fit `columns_in`."""
        return columns_in

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        """Return the passed rows, the rejected ones, and the number of dropped rows by the `total` of one of `outcomes`."""
        ...


_ENCODER: TypeAdapter[Any] = TypeAdapter(dict[str, Any])


@cache
def _adapter(kind: type[Step]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def kinds() -> Mapping[str, type[Step]]:
    """Return every kind of step by its name. Raise TypeError for a kind with an unregistered outcome."""
    by_name: dict[str, type[Step]] = {}
    for module in pkgutil.iter_modules(__path__):
        kind: type[Step] = import_module(f"{__name__}.{module.name}").STEP
        check_registered(kind.name, kind.outcomes)
        by_name[kind.name] = kind
    return by_name


def in_order(kinds: Iterable[type[Step]]) -> list[type[Step]]:
    """Return kinds in the order of a program: the first, the transforms by name, the last."""
    return sorted(kinds, key=lambda kind: (kind.rank, kind.name))


def pass_through(
    steps: Sequence[tuple[Step, frozenset[str]]],
    context: Context,
    rows: pa.Table,
    renew: Callable[[], Engine],
    is_behind: bool = False,
) -> Passed:
    """Take `rows` through steps, each with the columns that no later step needs. A record on which a step ends is rejected.

    `renew` opens another engine, if a step's error has left the old one unusable. `is_behind`: the steps follow one with state.
    """
    rejected, dropped, later = [], Counter[str](), []
    for step, done_with in steps:
        output = isolated(step.stage, _applied(step, context), context.engine, rows, renew)
        _check_dropped(step, output)
        if are_several(output.accepted):
            output = of_records(rows, output)
        if not is_behind or step.rank is Rank.LAST:
            dropped.update(output.dropped)
        elif any(output.dropped.values()):
            (total,) = output.dropped
            later.append(marked(rows, output.accepted, output.rejected, total))
        is_behind |= step.state is State.PER_BUCKET
        rows = output.accepted
        if not done_with.isdisjoint(rows.column_names):
            rows = rows.select([name for name in rows.column_names if name not in done_with])
        rejected.append(output.rejected)
    return Passed(rows, pa.concat_tables(rejected), dropped, later)


def isolated(name: str, stage: Stage, engine: Engine, table: pa.Table, renew: Callable[[], Engine]) -> StageOutput:
    """Return `stage(engine, table)`; if the stage raises, leave out and reject the records at fault. `renew` opens another engine."""
    try:
        return stage(engine, table)
    except Exception as error:
        if is_of_host(error):
            raise
        return Search(name, stage, renew).through(table, error)


def _applied(step: Step, context: Context) -> Stage:
    return lambda engine, rows: step.apply(replace(context, engine=engine), rows)


def _check_dropped(step: Step, output: StageOutput) -> None:
    unknown = output.dropped.keys() - {outcome.total for outcome in step.outcomes}
    if unknown:
        raise TypeError(f"step {step.name!r} has dropped records as {', '.join(sorted(unknown))}, which is none of its outcomes")
