"""The rows of the tables by the mapping under which they were made, compared with that of an edited file. Reads only.

In: the ledger's account of raw, the configurations of its ranges, and the edited file with its tables as they will be. Out: ranges of raw
sequences, with the number of their rows and what these rows have otherwise.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from pipelines.config import PipelineConfig
from pipelines.config.sinks import PIPELINE_COLUMN
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import Table, TableColumn, open_sink
from pipelines.process.compile import compile_program
from pipelines.process.program import Program
from pipelines.process.steps import Step
from pipelines.process.steps.mapping import MappedColumn
from pipelines.proof.readers.table import count_rows
from pipelines.proof.verification.span import History, load_configs, read_history
from pipelines.protocol.bodies import REPROCESS_CHAIN, ReprocessPlan
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.topology import LegId


@dataclass(frozen=True)
class MadeRange:
    """Rows of one table that were made alike: raw sequences `first` to `last`, both inclusive.

    `rows`: their number; None where the table has no positions to tell. `differences`: what they have otherwise than rows of the edited
    file; none if they are as it makes them. `is_purged`: their raw records are gone, so they stay as they are.
    """

    table: str
    first: int
    last: int
    rows: int | None
    differences: tuple[str, ...]
    is_purged: bool = False


@dataclass(frozen=True)
class Made:
    """The rows of all tables so far. `programs`: of the edited file, as each sink leg sees it.

    `unfinished`: rows that may be out of the table, because making them anew was not finished.
    """

    ranges: tuple[MadeRange, ...] = ()
    programs: Mapping[LegId, Program] = field(default_factory=dict)
    unfinished: ReprocessPlan | None = None

    @property
    def differs(self) -> bool:
        """Whether rows have something otherwise that raw still holds the records of."""
        return any(one.differences and not one.is_purged for one in self.ranges)


def made_ranges(config: PipelineConfig, columns: Mapping[LegId, Sequence[TableColumn]], log: JetStream) -> Made:
    """Return the rows of the tables of `config` by their mapping; nothing before all tables are there.

    `columns`: those that tables will have, by sink leg; others keep theirs. Raise ConfigurationError if a step does not fit its input,
    RetryableError while a system is away.
    """
    tables = list(_tables(config, columns))
    if None in tables:
        return Made()
    names = Names(config.pipeline_id)
    program = compile_program(config, [table for table in tables if table is not None])
    programs = {seen.sink_leg: program.seen_from(seen.sink_leg) for seen in config.by_sink}
    unfinished = read_chain(log, names, REPROCESS_CHAIN).plan
    ranges = [one for seen in config.by_sink for one in _of_sink(seen, programs[seen.sink_leg], log, names)]
    return Made(tuple(ranges), programs, unfinished.body if unfinished else None)


def _tables(config: PipelineConfig, columns: Mapping[LegId, Sequence[TableColumn]]) -> Iterator[Table | None]:
    for seen in config.by_table:
        with closing(open_sink(seen)) as sink:
            table = sink.inspect(seen.sink.connection_params.database, seen.sink.table)
        yield table and replace(table, columns=tuple(columns.get(seen.sink_leg, table.columns)))


def _of_sink(config: PipelineConfig, program: Program, log: JetStream, names: Names) -> Iterator[MadeRange]:
    """Yield the ranges of one table, of the raw frames that the ledger still knows."""
    if log.state(names.stream(config.sink_leg.input_role)) is None:
        # The sink is new.
        return
    history = read_history(log, names, config.topology, config.sink_leg, None)
    if not history.plans:
        return
    configs = load_configs(log, names, config.sink_leg, history)
    has_positions = {*program.position_columns} >= {"_tf_sequence", "_tf_ordinal"}
    # Before a table is shared, all of its rows are this pipeline's.
    sink = config.sink if is_owned(config) else config.sink.model_copy(update={"shared_table": False})
    oldest = history.sequences[0] if history.sequences else history.plans[-1].to + 1
    for first, last, words in differing(history, configs, program):
        for low, high in ((first, min(last, oldest - 1)), (max(first, oldest), last)):
            if low <= high:
                rows = count_rows(sink, f"_tf_sequence BETWEEN {low} AND {high}") if has_positions else None
                yield MadeRange(program.full_table, low, high, rows, words, high < oldest)


def is_owned(config: PipelineConfig) -> bool:
    """Return whether the rows of the table can be read as the pipeline's own: a table that is to be shared names no pipeline before."""
    if not config.sink.names_pipeline:
        return True
    with closing(open_sink(config)) as sink:
        columns = sink.columns(config.sink.connection_params.database, config.sink.table)
    return any(column.name == PIPELINE_COLUMN for column in columns)


def differing(history: History, configs: Mapping[str, Program], program: Program) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield (first sequence, last sequence, differences) of the stretches whose rows are in the program's table, in order."""
    mine = ((first, last, configs[version]) for first, last, version in history.rows_made(history.plans[0].first, history.last))
    stretches = [(first, last, differences(made, program)) for first, last, made in mine if _is_there(made, program)]
    for words, group in groupby(stretches, key=lambda one: one[2]):
        alike = list(group)
        yield alike[0][0], alike[-1][1], words


def _is_there(made: Program, program: Program) -> bool:
    """Return whether a configuration has written the table of `program`."""
    tables = [table for table in made.tables.tables if table.leg == program.leg]
    return bool(tables) and (tables[0].database, tables[0].table) == (program.database, program.table)


def differences(made: Program, program: Program) -> tuple[str, ...]:
    """Return what rows that were made under `made` have otherwise than rows of `program`; nothing for a column that was renamed alone."""
    return tuple(dict.fromkeys((*_of_columns(made.mapping.columns, program.mapping.columns), *_of_steps(made, program))))


def _of_columns(made: Sequence[MappedColumn], now: Sequence[MappedColumn]) -> Iterator[str]:
    had = {column.name: column for column in made}
    gone = {column.name for column in made} - {column.name for column in now}
    for column in now:
        before = had.get(column.name)
        if before is None:
            before = next((one for one in made if one.field == column.field and one.name in gone), None)
            gone -= {before.name} if before else set()
        if before is None:
            yield f"without {column.name}"
        elif before.field != column.field:
            yield f"{column.name} from the field {before.field}"
        elif before.type != column.type:
            yield f"{column.name} as {before.type}"
        elif before.unit != column.unit:
            yield f"{column.name} from times in another notation"


def _of_steps(made: Program, program: Program) -> Iterator[str]:
    lanes = {lane.source: lane for lane in program.lanes}
    pairs = [(lane, lanes[lane.source]) for lane in made.lanes if lane.source in lanes]
    for before, now in pairs:
        kinds = dict(now.parse.fields)
        yield from (f"the field {name} as {kind}" for name, kind in before.parse.fields if kinds.get(name, kind) != kind)
        columns = {column.name: column for column in now.parse.columns}
        yield from (f"another field {one.name}" for one in before.parse.columns if columns.get(one.name, one) != one)
    steps = [(before.steps[1:], now.steps[1:]) for before, now in pairs]
    if any(_making(before) != _making(now) for before, now in (*steps, (made.shared[:-1], program.shared[:-1]))):
        yield "made by other transforms"


def _making(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return the steps that make values, functions too, though these may drop; the others decide which records get a row."""
    return [step.encode() for step in steps if not step.drops or step.archives]
