"""The mapping under which each row of a table of dead letters was made, by the ledger of its leg.

A frame of dead letters names no configuration, and the plan of its chunk does. Where the plan is purged, a column is known if all
configurations map it alike.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream, fetch_whole
from pipelines.connectors.sinks import TableColumn
from pipelines.process import stage_config
from pipelines.process.program import Program
from pipelines.process.steps.mapping import MapToTable
from pipelines.proof.verification.columns import ColumnChoice, choose_columns
from pipelines.proof.verification.compared import Column, Stretch, widened, within
from pipelines.proof.verification.plain_form import duckdb_type
from pipelines.proof.verification.span import History, Plan
from pipelines.protocol.bodies import SinkDone, SinkPlan
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import first_position, last_position
from pipelines.protocol.topology import LegId
from pipelines.types.columns import value_type

_PURGED = "the values of column {}: their plan is purged from the ledger, and configurations map it in different ways"


@dataclass(frozen=True)
class Mappings:
    """The configurations of the dead letters that the leg has confirmed, by sequences of their stream, from the first on.

    `history`: a plan for every stretch. `unplanned`: sequences, first and last, whose plan is purged: they have that of a neighbour.
    """

    history: History
    configs: Mapping[str, Program]
    unplanned: Sequence[tuple[int, int]] = ()

    def choose(self, file: PipelineConfig, actual: Sequence[TableColumn]) -> tuple[ColumnChoice, list[str]]:
        """Decide on the columns, as `choose_columns`, and return the reasons for which values of unplanned rows are not known."""
        choice = choose_columns(self.history, self.configs, file, actual, is_joined=False)
        if not self.unplanned:
            return choice, []
        stretches = tuple((first_position(first), last_position(last)) for first, last in self.unplanned)
        unlike = {column.name for column in choice.columns if not self._is_mapped_alike(column)}
        choice.columns = [
            replace(column, unknown=(*column.unknown, *stretches)) if column.name in unlike else column for column in choice.columns
        ]
        mapped, planned = self._names(self.configs), self._names({plan.version for plan in self.history.plans})
        return choice, [_PURGED.format(name) for name in sorted(unlike | (mapped - planned))]

    def _names(self, versions: Iterable[str]) -> set[str]:
        """Return the columns that some configurations map."""
        return {entry.name for version in versions for entry in self.configs[version].mapping.columns}

    def _is_mapped_alike(self, column: Column) -> bool:
        return len({_entry(column, config.mapping) for config in self.configs.values()}) == 1

    def value_of(self, column: Column) -> str:
        """Return SQL of a column's values over `dead_letter_fields`, each as the mapping under which its row was made has it."""
        stretches: dict[str, list[Stretch]] = {}
        for first, last, version in self.history.segments(0, self.history.plans[-1].to):
            value = _value(column, self.configs[version].mapping)
            stretches.setdefault(value, []).append((first_position(first), last_position(last)))
        cases = "".join(f" WHEN {within(places)} THEN {value}" for value, places in stretches.items())
        unknown = f" WHEN {within(column.unknown)} THEN NULL" if column.unknown else ""
        return f"(CASE{unknown}{cases} END)::{duckdb_type(column.type)}"


def _entry(column: Column, mapping: MapToTable) -> tuple[str, str] | None:
    """Return the field and the type of a column, under the first of its names that a mapping has."""
    entries = {entry.name: (entry.field, entry.type) for entry in mapping.columns}
    return next((entries[name] for name in (column.name, *column.former) if name in entries), None)


def _value(column: Column, mapping: MapToTable) -> str:
    entry = _entry(column, mapping)
    return column.unmapped if entry is None else widened(f"f_{entry[0]}", value_type(entry[1]), column.type) or "NULL"


def read_mappings(log: JetStream, names: Names, leg: LegId) -> Mappings | None:
    """Read the plans of a leg of dead letters; None while none of its rows is confirmed."""
    chain = read_chain(log, names, leg.chain)
    confirmed = chain.to or 0
    if not confirmed:
        return None
    planned = {done.to: Plan(done.start + 1, done.to, version) for done, version in _planned(log, names, leg, chain.sequence)}
    configs = _configs(log, names, leg)
    plans, unplanned, reached = list[Plan](), list[tuple[int, int]](), 0
    for plan in (*sorted(planned.values(), key=lambda plan: plan.to), None):
        first = plan.first if plan else confirmed + 1
        if first > reached + 1:
            unplanned.append((reached + 1, first - 1))
            nearest = plan or (plans[-1] if plans else None)
            plans.append(Plan(reached + 1, first - 1, nearest.version if nearest else [*configs][-1]))
        if plan:
            plans.append(plan)
            reached = plan.to
    used = {plan.version for plan in plans}
    known = configs if unplanned else {version: config for version, config in configs.items() if version in used}
    return Mappings(History(plans, (), (), confirmed, is_whole=not unplanned), known, unplanned)


def _planned(log: JetStream, names: Names, leg: LegId, last: int) -> Iterator[tuple[SinkDone, str]]:
    """Yield each finished range of the chain that has its plan, with the version of its configuration."""
    planned: SinkPlan | None = None
    for entry in map(leg.chain.decode, fetch_whole(log, names.stream("ledger"), names.chain(leg.chain.leg), 0, last)):
        if isinstance(entry.body, SinkPlan):
            planned = entry.body
        elif isinstance(entry.body, SinkDone):
            if planned and (planned.start, planned.to) == (entry.body.start, entry.body.to):
                yield entry.body, planned.config
            planned = None


def _configs(log: JetStream, names: Names, leg: LegId) -> dict[str, Program]:
    """Return the configurations on the ledger that have a table for the leg, by version, in the order in which they were written."""
    ledger = names.stream("ledger")
    last = {subject: log.last(ledger, subject) for subject in log.subjects(ledger, names.config(">"))}
    written = sorted((message.sequence, subject.rpartition(".")[2]) for subject, message in last.items() if message is not None)
    programs = {version: stage_config.load(log, names, version) for _, version in written}
    return {
        version: program.seen_from(leg)
        for version, program in programs.items()
        if program.dead_letters and any(table.leg == leg for table in program.dead_letters.tables)
    }
