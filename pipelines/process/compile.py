"""A pipeline file to its program, with what its tables are now. Pure: no Spark, no socket.

In: the config, and the facts of the table of each sink. Out: the program, or every fault with its path. Kept: nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from pipelines.config import KafkaSource, PipelineConfig
from pipelines.config.fields import common, joins
from pipelines.config.order import in_order
from pipelines.config.sinks import FALLBACK_FIELDS
from pipelines.config.sources import KafkaColumn, SchemaField
from pipelines.config.text import path_text
from pipelines.config.transforms import Transform
from pipelines.errors import ConfigurationError, Fault
from pipelines.process.computed import stored
from pipelines.process.program import RELEASE, Lane, Program
from pipelines.process.steps import Columns, Step, kinds
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.join import Join
from pipelines.process.steps.mapping import MappedColumn, MapToTable, MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.protocol.records import EMIT_FIELD, POSITION_COLUMNS
from pipelines.types.columns import parse_type


class ColumnFacts(Protocol):
    """A column of the table, as ClickHouse describes it."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def default_kind(self) -> str: ...


class TableFacts(Protocol):
    """The facts of its table that a program needs."""

    @property
    def database(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> Sequence[ColumnFacts]: ...


def compile_program(config: PipelineConfig, tables: Sequence[TableFacts]) -> Program:
    """Return the program of `config` for its tables, in the order of `by_table`, as they are now.

    Raise ConfigurationError if a step does not fit its input.

    Nullness and DEFAULTs are taken from the tables, types from the mappings. A column that a mapping declares by its base type may be
    Nullable in the table (GlassFlow's files do so).
    """
    faults: list[Fault] = []
    transforms = in_order(config)
    is_only = len(config.sources) == 1
    lanes = [_Compiled.of_source(faults, index, source, joins(config)) for index, source in enumerate(config.sources)]
    for source, lane in zip(config.sources, lanes, strict=True):
        lane.add_all([entry for entry in transforms if entry[1].source_id == source.source_id and not is_only])
    if joins(config):
        shared = _Compiled.of_join(faults, config.join, dict(zip([source.source_id for source in config.sources], lanes, strict=True)))
    else:
        shared = _Compiled.of_union(faults, lanes)
    shared.add_all([entry for entry in transforms if entry[1].source_id is None or is_only])
    targets: list[MapToTable] = []
    of_records, of_dead_letters = tables[: len(config.by_sink)], tables[len(config.by_sink) :]
    for seen, table in zip(config.by_sink, of_records, strict=True):
        try:
            targets.append(_mapping(seen, shared.known, shared.units, table))
            targets[-1].check({**shared.known, **(FALLBACK_FIELDS if targets[-1].refused_by else {})})
        except ValueError as error:
            faults.append(Fault(path_text((*seen.sink_at, "mapping")), str(error)))
    faults += _without_numbers_of_rows(config, shared.steps, targets)
    dead_letters = [
        _of_dead_letters(faults, seen, table) for seen, table in zip(config.by_table[len(config.by_sink) :], of_dead_letters, strict=True)
    ]
    if faults:
        raise ConfigurationError(f"pipeline {config.pipeline_id}", faults)
    made = (Lane(source.source_id, source.topic, tuple(lane.steps)) for source, lane in zip(config.sources, lanes, strict=True))
    shared_steps = (*shared.steps, MapToTables(tuple(targets)))
    return Program(
        RELEASE, config.buckets, tuple(made), shared_steps, dead_letters=MapToTables(tuple(dead_letters)) if dead_letters else None
    )


@dataclass
class _Compiled:
    """Steps as they are compiled, and the fields behind them with their types. `faults`: of the whole file. `is_side`: a join follows.

    `units`: of fields that are times, the unit of a number or the format of a text.
    """

    faults: list[Fault]
    known: Columns
    units: Mapping[str, str]
    steps: list[Step] = field(default_factory=list)
    is_side: bool = False

    @classmethod
    def of_source(cls, faults: list[Fault], index: int, source: KafkaSource, is_side: bool) -> "_Compiled":
        """Return the parse of a source."""
        declared: Sequence[SchemaField | KafkaColumn] = (*source.schema_fields, *source.columns)
        lane = cls(faults, {}, {one.name: one.time_notation for one in declared if one.time_notation}, is_side=is_side)
        lane.add(f"sources[{index}].schema_fields", lambda: Parse.of_source(source))
        return lane

    @classmethod
    def of_union(cls, faults: list[Fault], lanes: "Sequence[_Compiled]") -> "_Compiled":
        """Return what follows the lanes: no step yet, over the fields that all of them have, with times in the same unit or format."""
        known = common([lane.known for lane in lanes])
        for name in known:
            if len(units := {lane.units.get(name, "none") for lane in lanes}) > 1:
                found = f"the field {name} has different units or formats of times: {', '.join(sorted(units))}"
                faults.append(Fault("sources", f"{found}; give it one in all sources"))
        return cls(faults, known, {name: unit for name, unit in lanes[0].units.items() if name in known})

    @classmethod
    def of_join(cls, faults: list[Fault], config: Any, lanes: "Mapping[str, _Compiled]") -> "_Compiled":
        """Return the join of two lanes, by their sources."""
        units = {field.joined_name: lanes[field.source_id].units.get(field.name, "") for field in config.output_fields}
        joined = cls(faults, {}, {name: unit for name, unit in units.items() if unit})
        types, of_times = ({source: getattr(lane, name) for source, lane in lanes.items()} for name in ("known", "units"))
        joined.add("join", lambda: Join.of_sources(config, types, of_times))
        return joined

    def add_all(self, transforms: Sequence[tuple[int, Transform]]) -> None:
        """Add transforms, each with its index in the file."""
        for index, transform in transforms:
            kind = kinds()[transform.step or transform.type]
            self.add(f"transforms[{index}]", partial(kind.of_file, transform.config, self.known, self.units))
            self.units = _units_after(transform, self.units)

    def add(self, path: str, made: Callable[[], Step]) -> None:
        """Add a step, or its fault."""
        try:
            step = made()
            self._check_behind_dedup(step)
            self.steps.append(step)
            self.known = step.columns_out(self.known)
        except ValueError as error:
            self.faults.append(Fault(path, str(error)))

    def _check_behind_dedup(self, step: Step) -> None:
        """Raise ValueError for a step that drops records of a side of a join of which dedup has decided."""
        if self.is_side and step.drops and any(isinstance(one, Dedup) for one in self.steps):
            raise ValueError(f"a {step.name} behind the dedup of the same source is not supported before a join: put it before the dedup")


def _without_numbers_of_rows(config: PipelineConfig, steps: Sequence[Step], tables: Sequence[MapToTable]) -> list[Fault]:
    """Return the faults of tables that cannot tell the rows of one record apart, though they tell records apart."""
    if not any(step.makes_several for step in steps):
        return []
    text = "the table has _tf_sequence but not _tf_emit, which numbers the rows of a record: add it, UInt32 (`tallyflow ddl`)"
    wrong = [seen.sink_at for seen, table in zip(config.by_sink, tables, strict=False) if _lacks_numbers(table.position_columns)]
    return [Fault(path_text((*at, "table")), text) for at in wrong]


def _lacks_numbers(position_columns: Sequence[str]) -> bool:
    return "_tf_sequence" in position_columns and EMIT_FIELD.name not in position_columns


def _units_after(transform: Transform, units: Mapping[str, str]) -> dict[str, str]:
    config = transform.config
    made = {asked.name: asked.unit for asked in config.expressions()} if transform.computes else {}
    made |= {one.name: one.unit for one in config.made()}
    kept = {name: unit for name, unit in units.items() if config.keeps_fields and name not in made}
    return kept | {name: unit for name, unit in made.items() if unit}


def _mapping(config: PipelineConfig, fields: Columns, units: Mapping[str, str], table: TableFacts) -> MapToTable:
    actual = {column.name: column for column in table.columns}
    columns = []
    for entry in config.sink.mapping:
        column = actual[entry.column_name]
        kind = str(parse_type(entry.column_type))
        if column.type in (f"Nullable({kind})", f"LowCardinality(Nullable({kind}))"):
            kind = column.type
        has_default = column.default_kind == "DEFAULT"
        columns.append(MappedColumn(entry.name, entry.column_name, kind, has_default, units.get(entry.name, "")))
    conditions = [stored(asked.text, fields, config.sink.language, asked.type) for asked in config.sink.expressions()]
    positions = tuple(name for name in POSITION_COLUMNS if name in actual)
    when, refuser = conditions[0] if conditions else None, config.topology.refuser_of(config.sink_leg) or ""
    return MapToTable(tuple(columns), table.database, table.name, positions, config.sink_leg, when, config.sink.default, refuser)


def _of_dead_letters(faults: list[Fault], config: PipelineConfig, table: TableFacts) -> MapToTable:
    """Return the columns of the config's sink of dead letters; add a fault for a table that could not tell which dead letters it has."""
    mapped = _mapping(config, {}, {}, table)
    missing = [name for name in POSITION_COLUMNS if name not in mapped.position_columns]
    if missing:
        needed = "which a table of dead letters needs to hold each once; `tallyflow ddl` prints a statement that has them"
        faults.append(Fault(path_text((*config.sink_at, "table")), f"the table lacks {', '.join(missing)}, {needed}"))
    return mapped
