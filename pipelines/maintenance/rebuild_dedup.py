"""Rebuild of the key store of a dedup: the same records through the same stages give the same keys.

Once the raw stream was purged, its beginning cannot be replayed, nor can the rest by the same rules, because earlier keys are missing. But
only keys with an open window are needed: they come after the newest `done` by whose end all earlier windows have ended, and the out stream
shows which of their records were accepted; of those that a step behind dedup has dropped, the positions are kept beside the duplicates. All
streams must reach back to that `done`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipelines.connectors.nats.client import fetch_whole
from pipelines.errors import DataLossError, InvariantError
from pipelines.key_store.index import Words
from pipelines.maintenance.inspect import KeyState
from pipelines.maintenance.rebuilding import Rebuilding, Rebuilt
from pipelines.maintenance.replay import Start
from pipelines.process.arrivals import Arrived
from pipelines.process.buckets import dedup_store, key_owners, listed, live_runs, shares
from pipelines.process.dedup import KEY_COLUMNS, PAST_COLUMN
from pipelines.process.frames import frame_times
from pipelines.process.program import Program
from pipelines.process.stage_config import config_of
from pipelines.process.watermarks import BEFORE_COLUMN, TIME_COLUMN, FrameTimes
from pipelines.protocol.bodies import PROCESS_CHAIN, ProcessDone
from pipelines.protocol.naming import is_then_dropped
from pipelines.protocol.outcomes import DUPLICATE, MADE, THEN_DROPPED, WRITTEN, residue
from pipelines.protocol.positions import SEQUENCE_AND_ORDINAL, packed, position_keys
from pipelines.protocol.purge import Purged
from pipelines.protocol.records import decode_columns

ACCEPTED = "accepted"
"""The label of the records that dedup has accepted, whatever became of them behind it."""
_REPLAYED_COLUMNS = ("_tf_sequence", "_tf_ordinal", "_tf_arrival", *KEY_COLUMNS, TIME_COLUMN, BEFORE_COLUMN, PAST_COLUMN)


class DedupRebuilding(Rebuilding):
    """Rebuilds the keys that dedup has accepted."""

    def __init__(self, state: KeyState, done: ProcessDone, end: int) -> None:
        super().__init__(state, done, end)
        self._accepted = self._duplicates = 0
        self._accepted_positions: Words | None = None

    def _begin_behind(self, purged: Purged) -> None:
        self._begin_at(self._oldest_needed(purged))

    def _oldest_needed(self, purged: Purged) -> ProcessDone:
        """Return the newest `done` at whose end the windows of all earlier keys have ended by now."""
        config = config_of(self._connections, self._done.config)
        expired = config.dedup.expired_us(self._done)

        def newest_us(done: ProcessDone) -> int:
            return done.watermarks.newest_us if config.dedup.time_field else done.clock_us

        ended = [done for done in self._entries() if isinstance(done, ProcessDone) and newest_us(done) <= expired]
        if not ended or ended[-1].to < purged.below:
            raise DataLossError(
                f"rebuilding the key store: {self._state.names.stream('raw')} was purged up to sequence {purged.below} and no longer holds "
                "all records whose keys have not expired. Restore the key store or the streams from a backup, or delete the pipeline and "
                "start it anew. To prevent this, set resources.nats.stream.max_age longer than the window, and max_bytes large enough"
            )
        return ended[-1]

    def _begin_at(self, done: ProcessDone) -> None:
        """Prepare to replay the records after `done` by the rows on out. Raise DataLossError if the out stream lacks rows."""
        self._at = Start.behind(done)
        self._totals_before = dict(done.totals)
        totals = {name: self._counted(name) for name in self._done.totals}
        accepted, missing = self._counted_accepted(), residue(PROCESS_CHAIN.leg, totals.get("rows_in", 0), totals)
        self._accepted_positions = self._positions_held()
        held = len(self._accepted_positions)
        if held != accepted or missing:
            raise DataLossError(
                f"rebuilding the key store: of {accepted + missing:,} accepted records whose keys have not expired, "
                f"the streams hold {held:,}, with those that a later step has dropped. Restore the key store or the streams from a backup, "
                "or delete the pipeline and start it anew"
            )

    def _counted_accepted(self) -> int:
        """Return the number of accepted records since the beginning, by the ledger: those with a row, and those dropped then."""
        return self._counted(WRITTEN.total) - self._counted(MADE) + self._counted(THEN_DROPPED)

    def _positions_held(self) -> Words:
        """Return the positions of the accepted records that are replayed, sorted, as the streams show them."""
        log, names = self._connections.log, self._state.names
        parts = [np.empty(0, np.uint64)]
        for role in (*self._connections.config.topology.outs, "duplicates"):
            held = log.state(names.stream(role))
            frames = fetch_whole(log, names.stream(role), names.subjects(role), 0, held.last_sequence if held else 0)
            shown = (frame for frame in frames if role != "duplicates" or is_then_dropped(frame.subject))
            parts += [position_keys(decode_columns(frame.payload, SEQUENCE_AND_ORDINAL)) for frame in shown]
        positions = np.unique(np.concatenate(parts))
        borders = packed([self._at.sequence + 1, self._done.to + 1], 0)
        first, end = np.searchsorted(positions, borders)
        return positions[first:end]

    def _replay(self, frames: Sequence[Arrived], config: Program) -> None:
        before, last = self._at, frames[-1]
        behind = Start(last.message.sequence, before.watermarks, last.arrival_us)
        made = [rows.select([name for name in _REPLAYED_COLUMNS if name in rows.column_names]) for rows in self._made(config, frames)]
        rows = pa.concat_tables(made, promote_options="default")
        times = frame_times(rows, frames, before.watermarks, config)
        if self._accepted_positions is not None:
            rows = _among(rows, self._accepted_positions)
        for bucket, part in shares(rows, key_owners(rows, self._done.buckets)):
            self._add_keys(config, bucket, part, behind, times)
        self._at = behind if times is None else replace(behind, watermarks=times.last)

    def _add_keys(self, config: Program, bucket: int, rows: pa.Table, behind: Start, times: FrameTimes | None) -> None:
        """Deduplicate the portion's rows of one bucket, in position order, and add their keys to its store as a new segment.

        `behind`: the end of the portion, with the watermarks before it.
        """
        store = dedup_store(self._connections, bucket)
        store.open(live_runs(self.runs, str(bucket)))
        firsts, _ = config.dedup.first_of_keys(rows, store, times)
        entries = firsts.entries
        if times is None:
            # By arrival older entries of a key have expired, too; by event time one of these may hide a live one.
            entries = entries.take(entries.time > config.dedup.expired_us(behind))
        span = (self._at.sequence, behind.sequence)
        self._list(str(bucket), listed(store.add(entries, span, config.dedup.expired_us(self._at), has_turn=True)))
        accepted, duplicates = firsts.counts
        self._accepted += accepted
        self._duplicates += duplicates

    def result(self) -> Rebuilt:
        counted = (self._counted("rows_in"), self._counted_accepted(), self._counted(DUPLICATE.total))
        # No accepted record may be counted as a copy now.
        dropped = 0 if self._accepted_positions is None else counted[2]
        replayed = (self._counts["rows_in"], self._accepted, self._duplicates + dropped)
        if replayed != counted:
            raise InvariantError(
                f"rebuilding the key store: the replay counted {replayed[0]:,} records, {replayed[1]:,} accepted and {replayed[2]:,} "
                f"duplicates; the ledger counted {counted[0]:,}, {counted[1]:,} and {counted[2]:,}. No segment was listed; report this "
                "with the log"
            )
        return Rebuilt(replayed[0], *self._stored(), {ACCEPTED: replayed[1], DUPLICATE.label: replayed[2]})


def _among(rows: pa.Table, positions: Words) -> pa.Table:
    """Return the rows at `positions`, which are sorted and may be far more."""
    own = position_keys(rows)
    at = np.searchsorted(positions, own)
    is_among = at < len(positions)
    is_among[is_among] = positions[at[is_among]] == own[is_among]
    return rows.filter(pa.array(is_among))
