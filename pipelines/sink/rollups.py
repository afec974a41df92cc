"""The sink leg's work on rollups, between two chunks: create their views, and fill in the rows from before these.

A view passes on the rows behind a cut, a raw sequence, and a fill adds those up to it: which rows come from where does not depend on when
an insert lands. The cut is the end of the last plan of process. Every row that may have been sent lies at or before it, and no chunk with
a later row is sent before the view is there. The fill begins when the sink has confirmed all rows up to the cut. A range of raw sequences
is noted before it is filled in, and sent again under the same insert token until it is noted as filled. So each row is counted once,
whatever is killed.
"""

import math
from dataclasses import replace

from pipelines.config.fields import joins
from pipelines.connectors.clickhouse.settings import FILL_SETTINGS
from pipelines.engine.connections import Connections
from pipelines.engine.leg import Tenure
from pipelines.errors import HaltError, RetryableError
from pipelines.protocol.bodies import PROCESS_CHAIN
from pipelines.protocol.failpoints import reach
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import fill_token
from pipelines.rollups.feeds import Feed
from pipelines.rollups.state import ABSENT, Filled, rollup_state

ROWS_PER_FILL = 4_000_000
"""Rows of the table that one insert fills in, about: a second of ClickHouse's work."""


class RollupFeeds:
    """The feeds of one start of a sink leg. Methods are for the leg's thread; each may be called again after any failure."""

    def __init__(self, connections: Connections, tenure: Tenure) -> None:
        self._connections, self._tenure = connections, tenure
        self._state = rollup_state(connections.config, connections.sink)
        self._known: dict[str, Filled] = {}
        """The progress by target, once its view is there and noted."""

    @property
    def _stream_id(self) -> str:
        return self._connections.run.stream_ids[self._connections.out]

    @property
    def left(self) -> str:
        """The targets that still lack rows, in words; empty if none does."""
        open_ones = [f"{target} to raw sequence {filled.cut}" for target, filled in self._known.items() if not filled.is_whole]
        return f"filling rollups: {', '.join(open_ones)}" if open_ones else ""

    @property
    def is_settled(self) -> bool:
        """Whether every view is known to be there and every target holds all rows."""
        return bool(self._known) and not self.left

    def ensure(self) -> None:
        """Let every target have its view, before a chunk is planned and while no plan is open: all that was sent is confirmed.

        Raise HaltError for a view that was dropped, or was created too late.
        """
        feeds = self._state.statements.feeds
        if not self._known:
            self._create_tables()
        cuts = self._state.cuts()
        if self._known:
            for feed in feeds:
                if cuts[feed.target] != self._known[feed.target].cut:
                    raise self._lost(feed)
            return
        noted = self._state.filled(self._stream_id)
        found = {feed.target: self._adopted(feed, cuts[feed.target], noted.get(feed.target, [])) for feed in feeds}
        if self._state.can_create:
            for rollup in self._state.statements.rollups:
                for text in self._state.statements.create_windows(rollup):
                    self._state.clickhouse.command(f"creating the windows of rollup {rollup.name}", text)
        self._known = found

    def _create_tables(self) -> None:
        """Create targets and progress, if the file asks for it; they are there otherwise, by the check of the start."""
        if not self._state.can_create:
            return
        for target, text in self._state.creates_targets().items():
            self._state.clickhouse.command(f"creating the rollup table {target}", text)
        for rollup in self._state.statements.rollups:
            self._state.clickhouse.command(f"creating the table {rollup.progress}", self._state.statements.create_progress(rollup))

    def _adopted(self, feed: Feed, cut: int, noted: list[Filled]) -> Filled:
        """Return the progress of a feed. A view that is not noted yet is created, checked, and noted.

        A target that was dropped or emptied counts as new: with nothing in it, no row can be counted twice. Raise RetryableError after a
        view was dropped that was created in vain.
        """
        known = next((one for one in noted if one.cut == cut), None)
        has_rows = self._state.rows_of(feed.target) > 0
        # All buckets of a target with `keep` may have expired.
        if known is not None and (has_rows or feed.rollup.keep is not None or not self._state.rows_within(0)):
            return known
        if has_rows:
            raise self._unknown_rows(feed)
        if cut == ABSENT:
            if not self._state.can_create:
                raise self._absent(feed)
            cut = self._created(feed)
        if self._joins and (cut or self._state.rows_within(0)):
            raise self._behind_a_join(feed)
        if self._state.rows_within(cut):
            raise self._late(feed, cut)
        if self._tenure.remaining_seconds <= 0:
            # Another runner may have sent rows before the view was there.
            raise RetryableError("creating the views of rollups: waiting for the lease to be renewed (NATS is slow or away)")
        return self._noted(feed, Filled(cut, 0, 0, max((one.attempt for one in noted), default=0) + 1))

    def _created(self, feed: Feed) -> int:
        """Create the view of a feed; return its cut, which is that of another start if one was faster."""
        cut = 0 if self._joins else self._process_end()
        self._state.clickhouse.command(f"creating the view {feed.view}", self._state.statements.create_view(feed, cut))
        reach("rollup.after-view")
        return self._state.cuts()[feed.target]

    @property
    def _joins(self) -> bool:
        """Whether rows may follow rows of later positions: a joined row has the position of its left record, however long that waited."""
        return joins(self._connections.config)

    def _process_end(self) -> int:
        """Return a raw sequence at or before which every row on out lies: each was written under a plan of process."""
        state = read_chain(self._connections.log, self._connections.names, PROCESS_CHAIN)
        return state.plan.body.to if state.plan is not None else state.to or 0

    def _late(self, feed: Feed, cut: int) -> Exception:
        """Return the error of a view behind whose cut the table has rows that it has not seen; drop the view if a start may create it."""
        if self._state.can_create:
            self._state.clickhouse.command(f"dropping the view {feed.view}", self._state.statements.drop(feed.view))
            return RetryableError(f"creating the view {feed.view}: it was created behind rows that it has not seen; creating it again")
        return HaltError(
            f"adding rollup {feed.rollup.name}: the view {feed.view} counts rows behind raw sequence {cut}, and the table held such rows "
            f"before it; drop the view, and create it as `tallyflow ddl FILE --after {self._process_end()}` prints it"
        )

    def _noted(self, feed: Feed, filled: Filled) -> Filled:
        """Note the progress of a feed and return it."""
        numbers = {"attempt": filled.attempt, "cut": filled.cut, "filled_to": filled.to, "planned_to": filled.planned}
        doing, text = f"noting the progress of {feed.target}", self._state.statements.note_progress(feed.rollup)
        names = {"stream_id": self._stream_id, "target": feed.target}
        self._state.clickhouse.command(doing, text, {**names, **numbers}, {"async_insert": 0})
        reach("rollup.after-note")
        return filled

    def fill(self, confirmed_to: int) -> bool:
        """Fill in the next range of each target that lacks some; return True if there was one.

        `confirmed_to`: the last out sequence that the sink has confirmed.
        """
        has_filled = False
        for feed in self._state.statements.feeds:
            filled = self._known.get(feed.target)
            if filled is None or filled.is_whole or not self._is_confirmed(filled.cut, confirmed_to):
                continue
            if filled.planned <= filled.to:
                parts = max(1, -(-self._state.rows_within(filled.to, filled.cut) // ROWS_PER_FILL))
                filled = self._noted(feed, replace(filled, planned=filled.to - (filled.to - filled.cut) // parts))
            self._fill_planned(feed, filled)
            self._known[feed.target] = self._noted(feed, replace(filled, to=filled.planned))
            has_filled = True
        return has_filled

    def _fill_planned(self, feed: Feed, filled: Filled) -> None:
        """Insert the planned range under its token: the rows are final, and the same range has the same token."""
        after, to = filled.to, filled.planned
        place = f"{self._connections.config.sink.connection_params.database}.{feed.target}"
        token = fill_token(self._connections.names.pipeline, self._stream_id, place, filled.attempt, (filled.cut, after, to))
        seconds = math.ceil(self._connections.config.sink.max_insert_time.total_seconds())
        settings = {**FILL_SETTINGS, "insert_deduplication_token": token, "max_execution_time": seconds}
        doing = f"filling {place} with the rows of raw sequences {after + 1}-{to}"
        self._state.clickhouse.command(doing, self._state.statements.fill(feed, after, to), settings=settings)
        reach("rollup.after-fill")

    def _is_confirmed(self, cut: int, confirmed_to: int) -> bool:
        """Return True once all rows up to a cut are in the table: process is done with it, and the sink with what process wrote."""
        done = read_chain(self._connections.log, self._connections.names, PROCESS_CHAIN).done
        reached, end = (done.body.to, done.body.ends.get(self._connections.out, 0)) if done is not None else (0, 0)
        return reached >= cut and confirmed_to >= end

    def _absent(self, feed: Feed) -> HaltError:
        return HaltError(
            f"adding rollup {feed.rollup.name}: there is no view {feed.view}; create it as `tallyflow ddl FILE --after "
            f"{self._process_end()}` prints it, or set `create_rollups: true` in the sink"
        )

    def _behind_a_join(self, feed: Feed) -> HaltError:
        return HaltError(
            f"adding rollup {feed.rollup.name}: behind a join, rows come later than rows of later positions, so no position divides "
            "those in the table from those to come. Such a rollup must be there before the first row: start a new pipeline with a table "
            "of its own"
        )

    def _lost(self, feed: Feed) -> HaltError:
        return HaltError(
            f"feeding rollup {feed.rollup.name}: the view {feed.view} was dropped or replaced while the pipeline ran, and its target may "
            f"lack rows. Drop the target {feed.target} and the view, and start again: both are made anew and filled from the table"
        )

    def _unknown_rows(self, feed: Feed) -> HaltError:
        return HaltError(
            f"adding rollup {feed.rollup.name}: its table {feed.target} holds rows that no view of this pipeline has written, and would "
            f"count rows twice. Drop it and its view {feed.view}, and start again: both are made anew and filled from the table"
        )
