"""An edit compared with the pipeline that runs and with its tables: what it needs, and whether it can be applied. Changes nothing."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from pipelines.config import OTHER_SHAPE, PipelineConfig
from pipelines.config.sinks import PIPELINE_COLUMN
from pipelines.config.text import path_text
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import PIPELINE_TYPE, Sink, Table, TableColumn, open_sink
from pipelines.connectors.sinks.clickhouse import add_owner, column_faults
from pipelines.edits.changes import Change, Need, changes
from pipelines.edits.columns import Alteration, TableEdit, table_edit
from pipelines.errors import ConfigurationError, Fault, HaltError
from pipelines.protocol.existence import check_started
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.tally import tally
from pipelines.protocol.topology import LegId
from pipelines.runner.caught_up import begun, has_reached_the_end


@dataclass
class Edit:
    """What an edit asks for. `processed`: the records whose rows were made under earlier files. `waits`: whether rows are still under way.

    `tables`: by sink leg, those that are there. `problems`: why it cannot be applied. `remakes`: whether the rows so far are made anew.
    `halted`: legs of the running pipeline that have halted.
    """

    changes: list[Change]
    processed: int
    waits: bool
    tables: dict[LegId, TableEdit] = field(default_factory=dict)
    problems: list[Fault] = field(default_factory=list)
    remakes: bool = False
    halted: list[str] = field(default_factory=list)

    @property
    def need(self) -> Need:
        """The most that a change or a table needs; a leg that has halted begins again at a start only."""
        most = self._most
        return Need.RESTART if most == Need.RELOAD and self.halted else most

    @property
    def _most(self) -> Need:
        is_late = self.remakes or any(edit.late or edit.lossy for edit in self.tables.values())
        altered = Need.DRAIN if is_late else Need.NOTHING
        early = Need.RESTART if any(edit.early or edit.widening for edit in self.tables.values()) else Need.NOTHING
        return max([altered, early, *(change.need for change in self.changes)])

    @property
    def is_fixed(self) -> bool:
        """Whether the edit changes what may not change while a pipeline lives."""
        return self.need == Need.NEW_PIPELINE

    @property
    def needs_drain(self) -> bool:
        """Whether rows that wait have to be in the table first; a range that was begun, for a rebucket, too."""
        return self.waits and self.need in (Need.DRAIN, Need.REBUCKET)

    @property
    def early(self) -> list[tuple[LegId, Alteration]]:
        """Alterations while the pipeline runs."""
        return [(leg, one) for leg, edit in self.tables.items() for one in (*edit.early, *(() if self.needs_drain else edit.widening))]

    @property
    def late(self) -> list[tuple[LegId, Alteration]]:
        """Alterations once the pipeline stands, and nothing waits if that is needed."""
        drained = self.needs_drain
        return [(leg, one) for leg, edit in self.tables.items() for one in (*(edit.widening if drained else ()), *edit.late, *edit.lossy)]


def plan_edit(before: PipelineConfig, after: PipelineConfig, log: JetStream, *, is_running: bool, drops: bool) -> Edit:
    """Compare two files of a pipeline, the second with its tables, too. Change nothing.

    `is_running`: rows are under way then. `drops`: delete the columns that left the mapping. Raise HaltError for a pipeline that has never
    run, or a table that has to be altered by hand; RetryableError if a server is away.
    """
    names = Names(before.pipeline_id)
    check_started(log, names)
    account = tally(log, names, before.topology)
    process = next(leg for leg in account.legs if leg.leg == before.topology.process)
    edit = Edit(changes(before, after), process.rows_in, is_running or not _is_drained(before, log, names))
    if edit.is_fixed:
        return edit
    for seen in after.by_sink:
        with closing(open_sink(seen)) as sink:
            edit.problems += _look_at_table(edit, _same_table(before, seen), seen, sink, drops)
    return edit


def _is_drained(config: PipelineConfig, log: JetStream, names: Names) -> bool:
    legs = config.topology.legs
    states = {leg: read_chain(log, names, leg.chain) for leg in legs}
    ends = begun(config.topology.sources, log, names)
    return all(state.plan is None and has_reached_the_end(leg, state, ends, log, names) for leg, state in states.items())


def _same_table(before: PipelineConfig, after: PipelineConfig) -> PipelineConfig | None:
    """Return the earlier file as seen from the same sink, if that has filled the same table."""
    if after.sink_leg not in before.topology.tables:
        return None
    seen = before.seen_from(after.sink_leg)
    return seen if seen.sink.place() == after.sink.place() else None


def _look_at_table(edit: Edit, before: PipelineConfig | None, after: PipelineConfig, sink: Sink, drops: bool) -> Iterator[Fault]:
    """Note what the table of a sink needs; yield why it cannot be made to fit."""
    table = sink.inspect(after.sink.connection_params.database, after.sink.table)
    if table is None:
        if not after.sink.create_table:
            yield Fault(path_text((*after.sink_at, "table")), f"{after.sink.table} does not exist; create it (`tallyflow ddl`)")
        return
    found = edit.tables[after.sink_leg] = table_edit(before.sink if before else None, after.sink, table, drops)
    if after.sink.names_pipeline and all(column.name != PIPELINE_COLUMN for column in found.columns):
        found.alter(found.early, add_owner(after), "the rows so far are this pipeline's")
        found.columns.append(TableColumn(PIPELINE_COLUMN, PIPELINE_TYPE, "DEFAULT"))
    yield from column_faults(after, found.columns)
    _check_alterable(found, table, sink)


def _check_alterable(edit: TableEdit, table: Table, sink: Sink) -> None:
    """Raise HaltError if others depend on what would be altered, or the engine has its columns elsewhere."""
    alterations = [*edit.early, *edit.widening, *edit.late, *edit.lossy]
    if alterations and "MergeTree" not in table.engine:
        raise _by_hand(table, alterations, f"its engine is {table.engine}, whose columns are those of other tables")
    changed = [*edit.late, *edit.lossy]
    if changed and (views := sink.views_on(table.database, table.name)):
        raise _by_hand(table, changed, f"{', '.join(view.full_name for view in views)} read from it")


def _by_hand(table: Table, alterations: list[Alteration], why: str) -> HaltError:
    return HaltError(
        f"altering table {table.full_name}: {why}; alter all of them by hand, after `tallyflow run FILE --drain --as-started`, then "
        f"start the edited file. It needs: {'; '.join(one.statement for one in alterations)}"
    )


def check_applicable(edit: Edit, pipeline: str, accepts_loss: bool) -> None:
    """Raise HaltError or ConfigurationError for an edit that cannot be applied; nothing was changed."""
    if edit.is_fixed:
        fixed = "; ".join(f"{change.path} {change}" for change in edit.changes if change.need == Need.NEW_PIPELINE)
        raise HaltError(
            f"changing pipeline {pipeline}: {fixed}. These decide where a record's state is stored and may not change while the pipeline "
            f"lives; {OTHER_SHAPE}"
        )
    if edit.problems:
        raise ConfigurationError(f"the tables of pipeline {pipeline} cannot be made to fit the mapping", edit.problems)
    lossy = [one for table in edit.tables.values() for one in table.lossy]
    if lossy and not accepts_loss:
        raise HaltError(
            f"changing pipeline {pipeline}: stored values would be changed: "
            f"{'; '.join(f'{one.statement} ({one.why})' for one in lossy)}. Nothing was changed; add --change-stored to do it"
        )
