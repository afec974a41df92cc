"""A program: the steps that raw records of one source pass, from parse to the mapping. Pure: no Spark, no socket.

In: a pipeline file and the facts of its tables (`compile_program`), or the JSON that plans name by its version. Out: the rows and dead
letters of raw frames (`run`). The part before the exchange ends with the mapping, which reads each field as soon as no later step needs it:
the table's columns cross the exchange, not the fields.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import PipelineConfig
from pipelines.config.order import in_order
from pipelines.config.source_ids import only_source
from pipelines.config.text import path_text
from pipelines.config.transforms import Transform
from pipelines.errors import ConfigurationError, Fault, HaltError
from pipelines.process.arrivals import Arrived, records_of
from pipelines.process.computed import stored
from pipelines.process.dead_letter_rows import dead_letters
from pipelines.process.isolation import Decided, take_out
from pipelines.process.mapping.step import TargetColumn
from pipelines.process.parse.columns import widest_bytes
from pipelines.process.steps import Columns, Context, Rank, State, Step, kinds, pass_through
from pipelines.process.steps.dedup import NO_DEDUP, Dedup
from pipelines.process.steps.mapping import MappedColumn, MapToTable, MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.protocol.outcomes import REJECTED
from pipelines.protocol.records import POSITION_COLUMNS, StageOutput, joined
from pipelines.protocol.topology import SINK
from pipelines.types.columns import parse_type
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

RELEASE = 4
"""Format and meaning of programs.

Raised when a release would store programs differently, or produce other rows for the same records.
"""


@dataclass(frozen=True)
class Program:
    """The steps of one source, for the tables of all sinks. `buckets`: their number after the exchange.

    `leg`: the sink leg from which the program is seen, which has `table` and all that follows from it; no part of what is stored.

    Raise ValueError unless parse is the first step, the mapping the last, and between them at most one has state. No transform behind that
    one drops records: its own part that drops copies runs after all others, so only a record with a row counts as the first of its key.
    """

    release: int
    source: str
    topic: str
    buckets: int
    steps: tuple[Step, ...]
    leg: str = SINK

    def __post_init__(self) -> None:
        names = [step.name for step in self.steps]
        if [step.rank for step in self.steps] != [Rank.FIRST, *[Rank.TRANSFORM] * (len(names) - 2), Rank.LAST]:
            raise ValueError(f"the steps {', '.join(names)} do not begin with the one {Parse.name} and end with the one {MapToTables.name}")
        keyed = [index for index, step in enumerate(self.steps) if step.state is State.PER_BUCKET]
        behind = self.steps[keyed[0] + 1 : -1] if keyed else ()
        if any(step.drops or step.state is State.PER_BUCKET for step in behind):
            raise ValueError(f"step {names[keyed[0]]} must be the last one that drops records, and the only one with state")

    def encode(self) -> bytes:
        record = {"release": self.release, "source": self.source, "topic": self.topic, "buckets": self.buckets}
        return json.dumps({**record, "steps": [step.encode() for step in self.steps]}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, record: Mapping[str, Any]) -> "Program":
        """Return the program that `encode` has written, its JSON read. Raise KeyError, TypeError or ValueError for anything else."""
        if record.keys() != {"release", "source", "topic", "buckets", "steps"}:
            raise ValueError(f"its parts are {', '.join(map(repr, sorted(record)))}"[:200])
        steps = tuple(kinds()[step["step"]].decode(step) for step in record["steps"])
        return cls(int(record["release"]), str(record["source"]), str(record["topic"]), int(record["buckets"]), steps)

    @cached_property
    def version(self) -> str:
        """The digest of the list, by which plans and frames name it."""
        return hashlib.sha256(self.encode()).hexdigest()[:16]

    @property
    def parse(self) -> Parse:
        step = self.steps[0]
        assert isinstance(step, Parse)
        return step

    @property
    def tables(self) -> MapToTables:
        step = self.steps[-1]
        assert isinstance(step, MapToTables)
        return step

    def seen_from(self, leg: str) -> "Program":
        """Return the program as a sink leg sees it."""
        return self if self.leg == leg else replace(self, leg=leg)

    @property
    def mapping(self) -> MapToTable:
        """The mapping to the table of `leg`. Raise HaltError for a leg that it has none for: the sink was added since."""
        for table in self.tables.tables:
            if table.leg == self.leg:
                return table
        raise HaltError(f"configuration {self.version} has no table for {self.leg}; restore the sinks of the pipeline file")

    @cached_property
    def dedup(self) -> Dedup:
        """The step that drops copies, or NO_DEDUP."""
        return next((step for step in self.steps if isinstance(step, Dedup)), NO_DEDUP)

    @property
    def archives(self) -> frozenset[str]:
        """The digests of the code that the steps run, besides ours."""
        return frozenset[str]().union(*(step.archives for step in self.steps))

    @property
    def database(self) -> str:
        return self.mapping.database

    @property
    def table(self) -> str:
        return self.mapping.table

    @property
    def full_table(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def position_columns(self) -> tuple[str, ...]:
        return self.mapping.position_columns

    @property
    def insert_columns(self) -> list[str]:
        return self.mapping.insert_columns

    @property
    def targets(self) -> list[TargetColumn]:
        return self.mapping.targets

    @property
    def widening(self) -> int:
        """How many times the size of their records rows may take."""
        whole = {column.name for column in self.parse.columns if column.is_whole}
        tables = self.tables.tables
        return self.tables.widening + sum(column.field in whole for table in tables for column in table.columns)

    @cached_property
    def carried(self) -> tuple[str, ...]:
        """The columns, besides the table's, that the part after the exchange needs."""
        return tuple(name for step in self.steps for name in step.carried)

    @cached_property
    def path(self) -> list[tuple[Step, frozenset[str]]]:
        """The steps before the exchange, each with the fields that no later step reads."""
        columns: Columns = {}
        path = []
        for index, step in enumerate(self.steps):
            columns, later = step.columns_out(columns), self.steps[index + 1 :]
            needed = frozenset[str]().union(*(one.fields_read() for one in later)) if later else frozenset(columns)
            path.append((step, frozenset(columns.keys() - needed)))
            columns = {name: kind for name, kind in columns.items() if name in needed}
        return path


@dataclass(frozen=True)
class Made:
    """The output of a program for raw frames.

    With dedup, `rows` are the rows that cross the exchange, and are not counted as written yet.
    """

    rows: pa.Table
    dead_letters: pa.Table
    counts: dict[str, int]


def run(
    program: Program, engine: Engine, frames: Sequence[Arrived], decided: Decided = (), renew: Callable[[], Engine] = open_engine
) -> Made:
    """Take whole raw frames through the steps before the exchange; `renew` opens another engine if a step's error has ended this one.

    A record on which a step ends becomes a dead letter of INTERNAL_ERROR; so do the records of `decided`, which are not tried.
    """
    records = joined([records_of(frame.message, frame.arrival_us) for frame in frames])
    passed = run_records(program, engine, records, decided, renew)
    rejected = passed.rejected
    counts = {**new_counts(), "frames": len(frames), "rows_in": records.num_rows, REJECTED.total: rejected.num_rows, **passed.dropped}
    if not program.dedup.key:
        counts |= program.tables.counts(passed.accepted)
    if rejected.num_rows:
        reasons = pc.value_counts(pc.binary_join_element_wise("rejected", rejected.column("stage"), rejected.column("code"), "."))
        counts |= {reason["values"]: reason["counts"] for reason in reasons.to_pylist()}
    return Made(passed.accepted, dead_letters(records, rejected, program.version, program.source), counts)


def run_records(
    program: Program, engine: Engine, records: pa.Table, decided: Decided = (), renew: Callable[[], Engine] = open_engine
) -> StageOutput:
    """Take records with their positions (`records.with_positions`), in position order, through the steps; see `run`."""
    tried = take_out(records, decided)
    widest = widest_bytes(records, program.parse.columns)
    passed = pass_through(program.path, Context(engine, program.carried, widest), tried.accepted, renew)
    return StageOutput(program.dedup.sealed(passed.accepted), pa.concat_tables([tried.rejected, passed.rejected]), passed.dropped)


def new_counts() -> dict[str, int]:
    return {"rows_in": 0, "rows_out": 0, "rows_rejected": 0, "frames": 0}


def add_counts(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """Add `more` to `counts`, name by name."""
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


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
    """Return the program of `config` for its sinks' tables as they are now. Raise ConfigurationError if a step does not fit its input.

    Nullness and DEFAULTs are taken from the tables, types from the mappings. A column that a mapping declares by its base type may be
    Nullable in the table (GlassFlow's files do so).
    """
    source = only_source(config)
    faults: list[Fault] = []
    steps: list[Step] = []
    known: Columns = {}
    units: Mapping[str, str] = {field.name: field.unit for field in source.schema_fields if field.unit}
    units = {**units, **{column.name: column.unit for column in source.columns if column.unit}}

    def add(path: str, made: Callable[[], Step]) -> None:
        nonlocal known
        try:
            steps.append(made())
            known = steps[-1].columns_out(known)
        except ValueError as error:
            faults.append(Fault(path, str(error)))

    add(f"sources[{config.sources.index(source)}].schema_fields", lambda: Parse.of_source(source))
    for index, transform in in_order(config):
        kind = kinds()[transform.step or transform.type]
        add(f"transforms[{index}]", partial(kind.of_file, transform.config, known, units))
        units = _units_after(transform, units)
    targets: list[MapToTable] = []
    for seen, table in zip(config.by_sink, tables, strict=True):
        try:
            targets.append(_mapping(seen, known, units, table))
            targets[-1].check(known)
        except ValueError as error:
            faults.append(Fault(path_text((*seen.sink_at, "mapping")), str(error)))
    if faults:
        raise ConfigurationError(f"pipeline {config.pipeline_id}", faults)
    return Program(RELEASE, source.source_id, source.topic, config.buckets, (*steps, MapToTables(tuple(targets))))


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
    return MapToTable(tuple(columns), table.database, table.name, positions, config.sink_leg, conditions[0] if conditions else None)
