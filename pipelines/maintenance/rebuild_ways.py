"""The two ways in which a rebuild replays raw frames: in this process, or as Spark tasks. The reports are the same.

In: a portion of frames in sequence order, and an item with the state before it. Out: new segments, which no `done` lists yet. Tasks take
frames through the stages and send keys, times and places to the key's bucket; the bucket's task deduplicates them and writes its segment. A
second attempt of a task starts from the same listing and writes under new names.
"""

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.connectors.nats.client import fetch_whole
from pipelines.engine.connections import Connections
from pipelines.engine.execute import Exchange, Parcel, Tasks
from pipelines.key_store.index import Words
from pipelines.process.arrivals import Arrived, arrivals, steps
from pipelines.process.buckets import key_owners, listed, live_runs, shares
from pipelines.process.dedup import KEY_COLUMNS, PAST_COLUMN
from pipelines.process.frames import COUNTS, ROWS, fetched, frame_times, times_of, times_to_all
from pipelines.process.items import Share
from pipelines.process.program import add_counts, new_counts, run
from pipelines.process.stage_config import config_of
from pipelines.process.watermarks import BEFORE_COLUMN, TIME_COLUMN, FrameTimes
from pipelines.protocol.bodies import NOTHING, ClockReset, Poison, Watermarks
from pipelines.protocol.codec import Base64, Count, Form, Long, Text, Version
from pipelines.protocol.ledger import Totals
from pipelines.protocol.positions import ordinals_of, packed, position_keys
from pipelines.protocol.records import decode_parcel, encode_frame
from pipelines.protocol.run_lists import Lists

FRAMES_PER_PORTION = 120
"""Frames of a portion that is replayed in this process; a frame has some thousand records of usual size."""
FRAMES_PER_SCAN = 2_000
RECORDS_PER_BUCKET = 500_000
"""Records of a portion of tasks per bucket: this bounds the memory of a bucket's task."""
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


@dataclass(frozen=True, kw_only=True)
class SliceItem(RebuildItem):
    """A part of the portion for one task, whose frames are its `share`.

    `accepted`: for each frame a bit per accepted record, if dedup is not applied again.
    """

    share: Share
    accepted: dict[Text, Base64] | None = None


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
        rows = pa.concat_tables(
            [_replayed_rows(self._connections, item, step, counts) for step in steps(frames)], promote_options="default"
        )
        times = frame_times(rows, frames, item.watermarks, config)
        kept = rows if accepted is None else among(rows, accepted)
        parts = shares(kept, key_owners(kept, item.buckets))
        stages_report = RebuildReport(counts, times.last if times is not None else None)
        return [stages_report, *(_add(self._connections, item, bucket, part, times) for bucket, part in parts)]


class InTasks:
    """The way as Spark tasks, one per slot and then one per bucket."""

    def __init__(self, connections: Connections, resets: Sequence[ClockReset], tasks: Tasks) -> None:
        self._connections, self._resets, self._tasks = connections, resets, tasks

    def portions(self, after: int, to: int, clock_us: int, buckets: int) -> Iterator[list[Arrived]]:
        """Yield frames without their payloads, which tasks fetch themselves."""
        frames, most = self._frames(after, to, clock_us), RECORDS_PER_BUCKET * buckets
        portion: list[Arrived] = []
        records = 0
        for frame in frames:
            portion.append(frame)
            records += frame.message.rows
            if records >= most or len(portion) >= FRAMES_PER_SCAN * self._tasks.slots:
                yield portion
                portion, records = [], 0
        if portion:
            yield portion

    def _frames(self, after: int, to: int, clock_us: int) -> Iterator[Arrived]:
        stream = self._connections.names.stream("raw")
        messages = (
            message
            for start in range(after, to, FRAMES_PER_SCAN)
            for message in self._connections.log.scan(stream, start, min(to, start + FRAMES_PER_SCAN))
        )
        return arrivals(messages, clock_us, self._resets)

    def replay(self, frames: list[Arrived], item: RebuildItem, accepted: Words | None) -> list[RebuildReport]:
        subjects = (self._connections.names.subjects("raw"),)
        items = []
        for share in _cut(frames, self._tasks.slots):
            known = tuple((frame.message.sequence, frame.arrival_us) for frame in share)
            bits = None if accepted is None else {str(sequence): _bits(sequence, accepted) for sequence, _ in known}
            of_slice = {**vars(item), "start": known[0][0] - 1, "to": known[-1][0], "runs": {}}
            items.append(SliceItem(**of_slice, share=Share(subjects, known), accepted=bits))
        return self._tasks.exchange(REBUILD, items, item, item.buckets)


def send_keys(connections: Connections, item: SliceItem) -> Iterator[Parcel]:
    """Take a slice of the portion through the stages; yield the input of dedup to the key's bucket, and the frames' times to all."""
    config, counts = config_of(connections, item.config), new_counts()
    for step in steps(fetched(connections, item.share, item.start, item.to)):
        rows = _replayed_rows(connections, item, step, counts)
        if config.dedup.time_field:
            yield from times_to_all(rows, step, item.buckets)
        if item.accepted is not None:
            rows = among(rows, _accepted(step, item.accepted))
        for bucket, part in shares(rows, key_owners(rows, item.buckets)):
            yield bucket, ROWS, encode_frame(part)
    yield 0, COUNTS, json.dumps(counts).encode()


def add_keys(connections: Connections, item: RebuildItem, bucket: int, parcels: list[tuple[str, bytes]]) -> RebuildReport:
    """Replay the rows of the portion in `bucket`, in position order, with the bucket's store."""
    config = config_of(connections, item.config)
    times = times_of(parcels, item.watermarks, config)
    counts: Counter[str] = Counter()
    for kind, payload in parcels:
        if kind == COUNTS:
            counts.update(json.loads(payload))
    report = RebuildReport(dict(counts), times.last if times is not None else None)
    rows = [decode_parcel(payload) for kind, payload in parcels if kind == ROWS]
    if not rows:
        return report
    added = _add(connections, item, bucket, pa.concat_tables(rows, promote_options="default"), times)
    return replace(added, counts=report.counts, watermarks=report.watermarks)


REBUILD = Exchange(send_keys, add_keys, SliceItem, RebuildItem, RebuildReport)


def _add(connections: Connections, item: RebuildItem, bucket: int, rows: pa.Table, times: FrameTimes | None) -> RebuildReport:
    config, store = config_of(connections, item.config), connections.dedup_store(bucket)
    store.open(live_runs(item.runs, bucket))
    found, _ = config.dedup.first_of_keys(rows, store, times)
    entries = found.entries
    if times is None:
        # By arrival older entries of a key have expired, too; by event time one of these may hide a live one.
        entries = entries.take(entries.time > item.expired_after)
    runs = store.add(entries, (item.start, item.to), item.expired, has_turn=True)
    return RebuildReport(accepted=found.accepted.num_rows, duplicates=found.duplicates.num_rows, runs={str(bucket): listed(runs)})


def _replayed_rows(connections: Connections, item: RebuildItem, step: Sequence[Arrived], counts: dict[str, int]) -> pa.Table:
    """Return the input of dedup for the rows that pass the stages; records that a plan has decided are not tried again."""
    made = run(config_of(connections, item.config), connections.engine, step, item.poison)
    add_counts(counts, made.counts)
    return made.rows.select([name for name in _REPLAYED_COLUMNS if name in made.rows.column_names])


def _cut(frames: list[Arrived], most: int) -> Iterator[list[Arrived]]:
    """Yield at most this many neighboring parts with about as many records each."""
    ends = np.cumsum([frame.message.rows for frame in frames])
    borders = (np.searchsorted(ends, ends[-1] * np.arange(1, most) / most) + 1).tolist()
    for first, last in zip([0, *borders], [*borders, len(frames)], strict=True):
        if first < last:
            yield frames[first:last]


def among(rows: pa.Table, known: Words) -> pa.Table:
    """Return the rows whose places are in `known`, which is sorted and may be far longer."""
    own = position_keys(rows)
    at = np.searchsorted(known, own)
    is_known = at < len(known)
    is_known[is_known] = known[at[is_known]] == own[is_known]
    return rows.filter(pa.array(is_known))


def _bits(sequence: int, accepted: Words) -> str:
    """Return the ordinals of one frame that are in `accepted`, a bit each."""
    low, high = np.searchsorted(accepted, packed([sequence, sequence + 1], 0))
    ordinals = ordinals_of(accepted[low:high])
    is_accepted = np.zeros(int(ordinals[-1]) + 1 if len(ordinals) else 0, dtype=bool)
    is_accepted[ordinals] = True
    return b64encode(np.packbits(is_accepted).tobytes()).decode()


def _accepted(step: Sequence[Arrived], bits: dict[str, str]) -> Words:
    """Return the places of the frames' accepted records, sorted: the inverse of `_bits`."""
    parts = [np.empty(0, np.uint64)]
    for frame in step:
        sequence = frame.message.sequence
        (ordinals,) = np.unpackbits(np.frombuffer(b64decode(bits[str(sequence)]), dtype=np.uint8)).nonzero()
        parts.append(packed(sequence, ordinals))
    return np.concatenate(parts)
