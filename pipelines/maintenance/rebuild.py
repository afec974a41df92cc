"""Rebuild of a lost or damaged key store from the raw stream: the same records through the same stages give the same keys.

Nothing is published. Each range is read under its original configuration, as the ledger's plans name it, without the records that the
plans have made dead letters. The numbers of rows and duplicates must equal the ledger's counts; only then are the new segments listed.

Once the raw stream was purged, its beginning cannot be replayed, nor can the rest by the same rules, because earlier keys are missing. But
only keys with an open window are needed: they come after the newest `done` by whose end all earlier windows have ended, and the out stream
shows which of their records were accepted; of those that a step behind dedup has dropped, the positions are kept beside the duplicates. All
streams must reach back to that `done`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from pipelines.connectors.nats.client import fetch_whole
from pipelines.connectors.nats.streams import check_contiguous
from pipelines.errors import DataLossError, InvariantError
from pipelines.key_store.index import Words
from pipelines.maintenance.inspect import KeyState
from pipelines.maintenance.replay import Start, process_entries
from pipelines.process.arrivals import Arrived, arrivals, steps
from pipelines.process.buckets import dedup_store, key_owners, listed, live_runs, shares
from pipelines.process.dedup import KEY_COLUMNS, PAST_COLUMN
from pipelines.process.frames import frame_times
from pipelines.process.program import Program, add_counts, new_counts, run
from pipelines.process.stage_config import config_of, planned
from pipelines.process.watermarks import BEFORE_COLUMN, TIME_COLUMN, FrameTimes
from pipelines.progress import Progress, no_progress
from pipelines.protocol.bodies import PROCESS_CHAIN, Poison, ProcessDone, ProcessPlan
from pipelines.protocol.ledger import Open
from pipelines.protocol.naming import is_then_dropped
from pipelines.protocol.outcomes import DUPLICATE, MADE, THEN_DROPPED, WRITTEN, residue
from pipelines.protocol.positions import SEQUENCE_AND_ORDINAL, packed, position_keys
from pipelines.protocol.purge import Purged, read_purged
from pipelines.protocol.records import decode_columns
from pipelines.protocol.run_lists import Lists, RunLists

FRAMES_PER_PORTION = 120
"""Frames that are replayed together; a frame has some thousand records of usual size."""
_REPLAYED_COLUMNS = ("_tf_sequence", "_tf_ordinal", "_tf_arrival", *KEY_COLUMNS, TIME_COLUMN, BEFORE_COLUMN, PAST_COLUMN)


@dataclass(frozen=True)
class Rebuilt:
    """The records read, and the contents of the new store."""

    records: int
    accepted: int
    duplicates: int
    entries: int
    runs: int


def rebuild(state: KeyState, progress: Progress = no_progress, frames_per_portion: int = FRAMES_PER_PORTION) -> Rebuilt:
    """Write the store anew, up to the last `done`; an open plan is left for the next start. Safe to kill, and to repeat.

    `progress` counts the frames read. Raise FencedError while the process leg is up, DataLossError if the streams do not reach back to the
    oldest live key, InvariantError if the counts differ from the ledger's; then nothing was listed.
    """
    with state.held() as (chain, chain_state):
        done = state.last(chain_state)
        rebuilding = _Rebuilding(state, done, chain_state.sequence)
        rebuilding.replay_all(progress, frames_per_portion)
        result = rebuilding.result()
        chain.restate(replace(done, runs=RunLists(state.connections.log, state.names).write(None, rebuilding.runs)))
        return result


class _Rebuilding:
    """The growing new store. Until they are listed its segments belong to no reader, so a merge deletes its inputs at once."""

    def __init__(self, state: KeyState, done: ProcessDone, end: int) -> None:
        self._state, self._connections, self._done, self._end = state, state.connections, done, end
        self._counts: Counter[str] = Counter(new_counts())
        self._accepted = self._duplicates = 0
        self._at = Start()
        self._totals_before: dict[str, int] = {}
        self._accepted_positions: Words | None = None
        self._poison: dict[tuple[int, int], Poison] = {}
        """Decisions of plans about records on which a stage ends, by sequence and ordinal."""
        self.runs: Lists = {}
        """The new segments by bucket, in the ledger's form."""

    def replay_all(self, progress: Progress, frames_per_portion: int) -> None:
        """Replay all needed frames up to the last `done`, in portions of one configuration."""
        log, stream, to = self._connections.log, self._state.names.stream("raw"), self._done.to
        purged = read_purged(log, self._state.names, "raw")
        held = log.state(stream)
        if held is None or (not purged.below and held.first_sequence > 1):
            begins = "does not exist" if held is None else f"begins at sequence {held.first_sequence}"
            raise DataLossError(f"rebuilding the key store: {stream} {begins}, earlier records cannot be replayed; restore a backup")
        if purged.below:
            self._begin_at(self._oldest_needed(purged))
        begin = self._at.sequence
        for start, end, version, lookups in self._ranges(begin):
            messages = fetch_whole(log, stream, self._state.names.subjects("raw"), start, min(end, to))
            frames = arrivals(messages, self._at.clock_us, self._done.clock_resets)
            while portion := list(islice(frames, frames_per_portion)):
                sequences = [frame.message.sequence for frame in portion]
                check_contiguous(stream, sequences, self._at.sequence, sequences[-1])
                self._replay(portion, planned(self._connections, version, lookups))
                progress("replaying the raw stream", self._at.sequence - begin, to - begin)

    def _entries(self) -> Iterator[Open | ProcessPlan | ProcessDone]:
        return process_entries(self._connections.log, self._state.names, self._end)

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

    def _counted(self, name: str) -> int:
        return self._done.totals.get(name, 0) - self._totals_before.get(name, 0)

    def _ranges(self, begin: int) -> list[tuple[int, int, str, dict[str, str]]]:
        """Return (from, to, configuration, snapshots of look-up tables) of the ranges after `begin`; neighbors that share both are one.

        It adds the decisions of their plans to `_poison`.
        """
        ranges: list[tuple[int, int, str, dict[str, str]]] = []
        for plan in self._entries():
            if not isinstance(plan, ProcessPlan) or plan.to > self._done.to or plan.start < begin:
                continue
            start, to, version = plan.start, plan.to, plan.config
            self._poison |= {(poison[0], poison[1]): poison for poison in plan.poison}
            if ranges and ranges[-1][2:] == (version, plan.lookups):
                ranges[-1] = (ranges[-1][0], to, *ranges[-1][2:])
            else:
                ranges.append((start, to, version, plan.lookups))
        return ranges

    def _replay(self, frames: Sequence[Arrived], config: Program) -> None:
        """Replay one portion through the stages of its plan and write its keys to the stores."""
        before, last = self._at, frames[-1]
        behind = Start(last.message.sequence, before.watermarks, last.arrival_us)
        decided = tuple(poison for (sequence, _), poison in self._poison.items() if before.sequence < sequence <= behind.sequence)
        rows = pa.concat_tables([self._rows(config, step, decided) for step in steps(frames)], promote_options="default")
        times = frame_times(rows, frames, before.watermarks, config)
        if self._accepted_positions is not None:
            rows = _among(rows, self._accepted_positions)
        for bucket, part in shares(rows, key_owners(rows, self._done.buckets)):
            self._add_keys(config, bucket, part, behind, times)
        self._at = behind if times is None else replace(behind, watermarks=times.last)

    def _rows(self, config: Program, step: Sequence[Arrived], decided: tuple[Poison, ...]) -> pa.Table:
        """Return the input of dedup for the rows that pass the stages; records that a plan has decided are not tried again."""
        made = run(config, self._connections.engine, step, decided)
        add_counts(self._counts, made.counts)
        return made.rows.select([name for name in _REPLAYED_COLUMNS if name in made.rows.column_names])

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
        runs = listed(store.add(entries, span, config.dedup.expired_us(self._at), has_turn=True))
        for name in {name for name, *_ in self.runs.get(str(bucket), [])} - {name for name, *_ in runs}:
            store.storage.delete(name)
        self.runs[str(bucket)] = runs
        accepted, duplicates = firsts.counts
        self._accepted += accepted
        self._duplicates += duplicates

    def result(self) -> Rebuilt:
        """Return the counts. Raise InvariantError if they differ from the ledger's."""
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
        entries = [rows for listing in self.runs.values() for _, rows, *_ in listing]
        return Rebuilt(*replayed, sum(entries), len(entries))


def _among(rows: pa.Table, positions: Words) -> pa.Table:
    """Return the rows at `positions`, which are sorted and may be far more."""
    own = position_keys(rows)
    at = np.searchsorted(positions, own)
    is_among = at < len(positions)
    is_among[is_among] = positions[at[is_among]] == own[is_among]
    return rows.filter(pa.array(is_among))
