"""How a rebuild replays raw frames, and the way in this process; `rebuild_tasks.py` has the way as Spark tasks. The reports are the same.

In: a portion of frames in sequence order, and an item with the state before it. Out: new segments, which no `done` lists yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.connectors.nats.client import fetch_whole
from pipelines.engine.connections import Connections
from pipelines.key_store.index import Words
from pipelines.process.arrivals import Arrived, arrivals, steps
from pipelines.process.buckets import key_owners, listed, live_runs, shares
from pipelines.process.dedup import KEY_COLUMNS, PAST_COLUMN
from pipelines.process.frames import frame_times
from pipelines.process.program import add_counts, new_counts, run
from pipelines.process.stage_config import config_of
from pipelines.process.watermarks import BEFORE_COLUMN, TIME_COLUMN, FrameTimes
from pipelines.protocol.bodies import NOTHING, ClockReset, Poison, Watermarks
from pipelines.protocol.codec import Count, Form, Long, Version
from pipelines.protocol.ledger import Totals
from pipelines.protocol.positions import position_keys
from pipelines.protocol.run_lists import Lists

FRAMES_PER_PORTION = 120
"""Frames of a portion that is replayed in this process; a frame has some thousand records of usual size."""
_REPLAYED_COLUMNS = ("_tf_sequence", "_tf_ordinal", "_tf_arrival", *KEY_COLUMNS, TIME_COLUMN, BEFORE_COLUMN, PAST_COLUMN)


@dataclass(frozen=True, kw_only=True)
class RebuildItem(Form):
    """Raw frames from `start` (exclusive) to `to`, to be replayed under the configuration of a version.

    `poison`: records that plans have decided, which are left out. The state before the frames: `watermarks`, and the live `runs` of the
    store by bucket, of which there are `buckets`. Entries up to `expired` have expired by their beginning, up to `expired_after` by their
    end, in microseconds.
    """

    start: Count
    to: Count
    config: Version
    buckets: Count
    expired: Long
    expired_after: Long
    watermarks: Watermarks = NOTHING
    poison: tuple[Poison, ...] = ()
    runs: Lists = field(default_factory=dict)


@dataclass(frozen=True)
class RebuildReport(Form):
    """The report of the stages: `counts` and the watermarks after the portion; or of a bucket: its number of records and new segments."""

    counts: Totals = field(default_factory=dict)
    watermarks: Watermarks | None = None
    accepted: Count = 0
    duplicates: Count = 0
    runs: Lists = field(default_factory=dict)


class Way(Protocol):
    """A way to form portions and to replay them."""

    def portions(self, after: int, to: int, clock_us: int, buckets: int) -> Iterator[list[Arrived]]:
        """Yield all frames from `after` (exclusive) to `to`; `clock_us`: the arrival of the frame at `after`."""

    def replay(self, frames: list[Arrived], item: RebuildItem, accepted: Words | None) -> list[RebuildReport]:
        """Replay a portion.

        `accepted`: positions of the accepted records (`positions.packed`), sorted, if dedup is not applied again.
        """


class Here:
    """The way in this process."""

    def __init__(self, connections: Connections, resets: Sequence[ClockReset]) -> None:
        self._connections, self._resets = connections, resets

    def portions(self, after: int, to: int, clock_us: int, buckets: int) -> Iterator[list[Arrived]]:
        log, names = self._connections.log, self._connections.names
        frames = arrivals(fetch_whole(log, names.stream("raw"), names.subjects("raw"), after, to), clock_us, self._resets)
        while portion := list(islice(frames, FRAMES_PER_PORTION)):
            yield portion

    def replay(self, frames: list[Arrived], item: RebuildItem, accepted: Words | None) -> list[RebuildReport]:
        config, counts = config_of(self._connections, item.config), new_counts()
        rows = pa.concat_tables([replayed_rows(self._connections, item, step, counts) for step in steps(frames)], promote_options="default")
        times = frame_times(rows, frames, item.watermarks, config)
        kept = rows if accepted is None else among(rows, accepted)
        parts = shares(kept, key_owners(kept, item.buckets))
        stages_report = RebuildReport(counts, times.last if times is not None else None)
        return [stages_report, *(add_keys_of(self._connections, item, bucket, part, times) for bucket, part in parts)]


def add_keys_of(connections: Connections, item: RebuildItem, bucket: int, rows: pa.Table, times: FrameTimes | None) -> RebuildReport:
    """Deduplicate the portion's rows of one bucket, in position order, and add their keys to its store as a new segment."""
    config, store = config_of(connections, item.config), connections.dedup_store(bucket)
    store.open(live_runs(item.runs, bucket))
    found, _ = config.dedup.first_of_keys(rows, store, times)
    entries = found.entries
    if times is None:
        # By arrival older entries of a key have expired, too; by event time one of these may hide a live one.
        entries = entries.take(entries.time > item.expired_after)
    runs = store.add(entries, (item.start, item.to), item.expired, has_turn=True)
    return RebuildReport(accepted=found.accepted.num_rows, duplicates=found.duplicates.num_rows, runs={str(bucket): listed(runs)})


def replayed_rows(connections: Connections, item: RebuildItem, step: Sequence[Arrived], counts: dict[str, int]) -> pa.Table:
    """Return the input of dedup for the rows that pass the stages; records that a plan has decided are not tried again."""
    made = run(config_of(connections, item.config), connections.engine, step, item.poison)
    add_counts(counts, made.counts)
    return made.rows.select([name for name in _REPLAYED_COLUMNS if name in made.rows.column_names])


def among(rows: pa.Table, known: Words) -> pa.Table:
    """Return the rows whose places are in `known`, which is sorted and may be far longer."""
    own = position_keys(rows)
    at = np.searchsorted(known, own)
    is_known = at < len(known)
    is_known[is_known] = known[at[is_known]] == own[is_known]
    return rows.filter(pa.array(is_known))
