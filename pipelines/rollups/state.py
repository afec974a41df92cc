"""What ClickHouse has of the rollups of a sink: their views, how far each target is filled, and whether they are as the file says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.config import PipelineConfig
from pipelines.config.rollups import Rollup
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.sinks import Sink, Table
from pipelines.connectors.sql import statement
from pipelines.errors import HaltError, InvariantError
from pipelines.rollups.ddl import MERGE_SETTINGS, RollupStatements
from pipelines.rollups.feeds import Feed, needed_positions

ABSENT = -1
"""The cut of a view that does not exist."""
_CUT = "source._tf_sequence > "


LAST_SEQUENCE = 2**64 - 1


@dataclass(frozen=True)
class Filled:
    """The progress of a target: rows up to raw sequence `cut` come from a fill, which has reached `to`; later ones from the view.

    `planned`: the end of the range in work, `to` if there is none. `attempt`: counts how often the target was made anew.
    """

    cut: int
    to: int
    planned: int = 0
    attempt: int = 1

    @property
    def is_whole(self) -> bool:
        return self.to >= self.cut


def rollup_state(config: PipelineConfig, sink: Sink) -> "RollupState":
    """Return the state of the rollups of a sink. Raise InvariantError for a sink of a kind that has none."""
    if not isinstance(sink, ClickHouse):
        raise InvariantError(f"looking at rollups: a sink of the type {config.sink.type} has none")
    return RollupState(config, sink)


class RollupState:
    """The rollups of one sink in ClickHouse. Methods raise RetryableError or HaltError as the client does."""

    def __init__(self, config: PipelineConfig, clickhouse: ClickHouse) -> None:
        self.clickhouse = clickhouse
        self._database, self._table = config.sink.connection_params.database, config.sink.table
        self._can_create = getattr(config.sink, "create_rollups", False)
        self.statements = RollupStatements(config)
        self._sound: dict[tuple[str, str], int] = {}
        """The cut by view and its SELECT, of those that are as the file says."""

    def cuts(self) -> dict[str, int]:
        """Return the cut of each feed's view by target, ABSENT without a view.

        Raise HaltError for a view that is not the one that the file asks for.
        """
        views = self._selects([feed.view for feed in self.statements.feeds])
        return {feed.target: self._cut(feed, views.get(feed.view)) for feed in self.statements.feeds}

    def _selects(self, names: Sequence[str]) -> dict[str, str]:
        parameters = {"database": self._database, "names": list(names)}
        return dict(self.clickhouse.rows("looking for the views of the rollups", statement("rollups/views"), parameters))

    def _cut(self, feed: Feed, select: str | None) -> int:
        if select is None:
            return ABSENT
        if (feed.view, select) not in self._sound:
            digits = select.partition(_CUT)[2].partition(" ")[0].rstrip(")")
            if not digits.isdecimal() or select != self._formatted(self.statements.rows_of_view(feed, int(digits))):
                raise self.other(feed.view, feed.rollup)
            self._sound[feed.view, select] = int(digits)
        return self._sound[feed.view, select]

    def _formatted(self, query: str) -> str:
        found = self.clickhouse.rows("formatting the query of a view", statement("rollups/formatted"), {"query": query})
        return str(found[0][0])

    def creates_targets(self) -> dict[str, str]:
        """Return the statement of each target, as this server can run it."""
        asked = {"names": list(MERGE_SETTINGS)}
        known = {name for (name,) in self.clickhouse.rows("looking for settings of merges", statement("rollups/known_settings"), asked)}
        return {feed.target: self.statements.create_target(feed, known) for feed in self.statements.feeds}

    def filled(self, stream_id: str) -> dict[str, list[Filled]]:
        """Return the progress of the last attempt by target, as it was noted for the pipeline of this out stream.

        Two starts at once may have noted several cuts; that of the view counts.
        """
        found: dict[str, list[Filled]] = {}
        for rollup in self.statements.rollups:
            doing, query = f"reading the progress of rollup {rollup.name}", self.statements.progress(rollup)
            for target, attempt, cut, to, planned in self.clickhouse.rows(doing, query, {"stream_id": stream_id}):
                earlier = found.get(target, [])
                found[target] = [*(one for one in earlier if one.attempt == attempt), Filled(cut, to, planned, attempt)]
        return found

    def is_filled(self, stream_id: str) -> bool:
        """Return whether each target holds all rows of the table: its view is there, and the fill of earlier rows has ended."""
        if any(self.clickhouse.inspect(self._database, rollup.progress) is None for rollup in self.statements.rollups):
            return False
        noted, cuts = self.filled(stream_id), self.cuts()
        return all(any(one.cut == cut and one.is_whole for one in noted.get(target, ())) for target, cut in cuts.items())

    def check(self, table: Table) -> None:
        """Raise HaltError if the table cannot have rollups, or if theirs are missing or not as the file says. Change nothing."""
        if not self.statements.feeds:
            return
        self._check_table(table)
        missing = [name for rollup in self.statements.rollups for name in self._missing(rollup)]
        if missing and not self._can_create:
            raise HaltError(
                f"checking the rollups of {table.full_name}: there is no {', '.join(missing)}; run the statements that "
                "`tallyflow ddl FILE` prints, or set `create_rollups: true` in the sink"
            )
        for feed in self.statements.feeds:
            self._check_target(feed)
        self.cuts()
        for rollup in self.statements.rollups:
            self._check_windows(rollup)

    def _check_table(self, table: Table) -> None:
        present = {column.name: column.type for column in table.columns}
        doing = f"checking the rollups of {table.full_name}"
        if lacking := sorted(needed_positions() - present.keys()):
            raise HaltError(f"{doing}: the table has no column {', '.join(lacking)}, by which each row is counted once (docs/rollups.md)")
        if not table.keeps_rows:
            raise HaltError(f"{doing}: its engine {table.engine}, or its TTL, merges rows, and a rollup keeps what it removes")
        for rollup in self.statements.rollups:
            for name in (*rollup.group_by, rollup.time):
                if present.get(name, "").startswith(("Nullable(", "LowCardinality(Nullable(")):
                    raise HaltError(f"{doing}: the column {name} of the table is {present[name]}, and {rollup.name} needs it without nulls")

    def _missing(self, rollup: Rollup) -> list[str]:
        return [name for name in rollup.relations if self.clickhouse.inspect(self._database, name) is None]

    def _check_target(self, feed: Feed) -> None:
        target = self.clickhouse.inspect(self._database, feed.target)
        if target is None:
            return
        wanted = [(column.name, column.type) for column in feed.columns]
        if [(column.name, column.type) for column in target.columns] != wanted or "AggregatingMergeTree" not in target.engine:
            raise self.other(feed.target, feed.rollup)

    def _check_windows(self, rollup: Rollup) -> None:
        """Raise HaltError if the view that computes the windows is not that of the file. Nothing is lost with it."""
        view = f"{rollup.refreshed}_view"
        found = self._selects([view]).get(view)
        if found is not None and found != self._formatted(self.statements.windows(rollup)):
            raise HaltError(
                f"checking rollup {rollup.name}: {self._database}.{view} does not compute what the file asks for; drop {view}, "
                f"{rollup.refreshed} and {rollup.now}, which hold nothing but computed windows, and create them again"
            )

    def other(self, name: str, rollup: Rollup) -> HaltError:
        """Return the error of a table or view that is not as the file says."""
        return HaltError(
            f"checking rollup {rollup.name}: {self._database}.{name} is not what the file asks for (`tallyflow ddl` prints that). A rollup "
            "cannot be changed in place: give the changed one another name, which fills it with all rows of the table, or drop its "
            f"tables and views ({', '.join(rollup.relations)})"
        )

    def rows_within(self, after: int, to: int = LAST_SEQUENCE) -> int:
        """Count the rows of the table within raw sequences: from `after` (exclusive) to `to` (inclusive)."""
        bounds: Mapping[str, object] = {"database": self._database, "table": self._table, "after": after, "to": to}
        return int(self.clickhouse.rows("counting rows to fill in", statement("rollups/rows_within"), {**bounds})[0][0])

    def rows_of(self, target: str) -> int:
        return self.clickhouse.count_rows(self._database, target, with_positions=False)

    @property
    def can_create(self) -> bool:
        return self._can_create
