"""The two ways in which a rebuilding judges raw frames again: in this process, or as Spark tasks. The reports are the same.

In: a portion of frames in sequence order, and an item that tells what comes before it. Out: new runs, which nobody has listed. Tasks take
frames through the stages and send keys, times and places to the key's bucket; the bucket's task judges them and writes its run. A second
attempt of a task starts from the same listing and writes under new names.

An item holds `config`, `buckets`, `from` and `to` of the portion, the `poison` that its plans have decided, `watermarks`, what is over by
its beginning, `expired`, and by its end, `expired_after`, and the store as it is before the portion, `runs` by bucket. A report holds some
of `counts`, `accepted`, `duplicates`, `watermarks` and `runs`.
"""

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.connectors.nats.client import fetch_whole
from pipelines.engine.connections import Connections
from pipelines.engine.execute import Item, Parcel, Report, Tasks
from pipelines.key_store.index import Words
from pipelines.process.arrivals import Arrived, ClockReset, arrivals, steps
from pipelines.process.buckets import key_owners, listed, live_runs, shares
from pipelines.process.dedup import KEY_COLUMNS, PAST_COLUMN
from pipelines.process.frames import COUNTS, ROWS, fetched, frame_times, times_of, times_to_all
from pipelines.process.program import add_counts, new_counts, run
from pipelines.process.stage_config import config_of
from pipelines.process.watermarks import BEFORE_COLUMN, TIME_COLUMN, FrameTimes
from pipelines.protocol.records import decode_parcel, encode_frame

FRAMES_PER_PORTION = 120
"""Of what is judged here; a frame has some thousand records of usual size."""
FRAMES_PER_SCAN = 2_000
RECORDS_PER_BUCKET = 500_000
"""A portion of tasks has as many records times buckets: that bounds what a bucket's task holds."""
_JUDGED = ("_tf_sequence", "_tf_ordinal", "_tf_arrival", *KEY_COLUMNS, TIME_COLUMN, BEFORE_COLUMN, PAST_COLUMN)
SEQUENCE_BITS = np.uint64(32)
"""A place is a sequence above so many bits of an ordinal."""


class Way(Protocol):
    """How portions are made and judged."""

    def portions(self, after: int, to: int, clock_us: int, buckets: int) -> Iterator[list[Arrived]]:
        """All frames from `after` (exclusive) to `to`; `clock_us`: the arrival of the frame at `after`."""

    def judge(self, frames: list[Arrived], item: Item, accepted: Words | None) -> list[Report]:
        """`accepted`: places of the records that went on (`places`), sorted, where dedup is not asked again."""


class Here:
    """In this process."""

    def __init__(self, connections: Connections, resets: Sequence[ClockReset]) -> None:
        self._connections, self._resets = connections, resets

    def portions(self, after: int, to: int, clock_us: int, buckets: int) -> Iterator[list[Arrived]]:
        log, names = self._connections.log, self._connections.names
        frames = arrivals(fetch_whole(log, names.stream("raw"), names.subjects("raw"), after, to), clock_us, self._resets)
        while portion := list(islice(frames, FRAMES_PER_PORTION)):
            yield portion

    def judge(self, frames: list[Arrived], item: Item, accepted: Words | None) -> list[Report]:
        config, counts = config_of(self._connections, item["config"]), new_counts()
        rows = pa.concat_tables([_judged_rows(self._connections, item, step, counts) for step in steps(frames)], promote_options="default")
        times = frame_times(rows, frames, item, config)
        kept = rows if accepted is None else among(rows, accepted)
        parts = shares(kept, key_owners(kept, item["buckets"]))
        told: Report = {"counts": counts, "watermarks": times.last.encoded() if times is not None else None}
        return [told, *(_add(self._connections, item, bucket, part, times) for bucket, part in parts)]


class InTasks:
    """As Spark tasks, one per slot and then one per bucket."""

    def __init__(self, connections: Connections, resets: Sequence[ClockReset], tasks: Tasks) -> None:
        self._connections, self._resets, self._tasks = connections, resets, tasks

    def portions(self, after: int, to: int, clock_us: int, buckets: int) -> Iterator[list[Arrived]]:
        """Frames without their payloads, which tasks fetch themselves."""
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

    def judge(self, frames: list[Arrived], item: Item, accepted: Words | None) -> list[Report]:
        subjects = [self._connections.names.subjects("raw")]
        items = []
        for share in _cut(frames, self._tasks.slots):
            known = [[frame.message.sequence, frame.arrival_us] for frame in share]
            span = {"from": share[0].message.sequence - 1, "to": share[-1].message.sequence}
            told = {} if accepted is None else {"accepted": {sequence: _bits(sequence, accepted) for sequence, _ in known}}
            items.append({**item, **span, **told, "share": {"subjects": subjects, "frames": known}, "runs": {}})
        return self._tasks.exchange(send_keys, items, add_keys, item, item["buckets"])


def send_keys(connections: Connections, item: Item) -> Iterator[Parcel]:
    """A slice of the portion through the stages: what dedup goes by, to the key's bucket; the frames' times to all."""
    config, counts = config_of(connections, item["config"]), new_counts()
    for step in steps(fetched(connections, item, item["share"])):
        rows = _judged_rows(connections, item, step, counts)
        if config.dedup.time_field:
            yield from times_to_all(rows, step, item["buckets"])
        if "accepted" in item:
            rows = among(rows, _accepted(step, item["accepted"]))
        for bucket, part in shares(rows, key_owners(rows, item["buckets"])):
            yield bucket, ROWS, encode_frame(part)
    yield 0, COUNTS, json.dumps(counts).encode()


def add_keys(connections: Connections, item: Item, bucket: int, parcels: list[tuple[str, bytes]]) -> Report:
    """All of the portion that falls into `bucket`, judged in position order; the bucket's store with it."""
    config = config_of(connections, item["config"])
    times = times_of(parcels, item, config)
    counts: Counter[str] = Counter()
    for kind, payload in parcels:
        if kind == COUNTS:
            counts.update(json.loads(payload))
    report: Report = {"counts": counts, "watermarks": times.last.encoded() if times is not None else None}
    rows = [decode_parcel(payload) for kind, payload in parcels if kind == ROWS]
    if rows:
        report |= _add(connections, item, bucket, pa.concat_tables(rows, promote_options="default"), times)
    return report


def _add(connections: Connections, item: Item, bucket: int, rows: pa.Table, times: FrameTimes | None) -> Report:
    config, store = config_of(connections, item["config"]), connections.dedup_store(bucket)
    store.open(live_runs(item["runs"], bucket))
    found, _ = config.dedup.first_of_keys(rows, store, times)
    entries = found.entries
    if times is None:
        # By arrival older entries of a key are over as well; by event time one of these may hide one that is not.
        entries = entries.take(entries.time > item["expired_after"])
    runs = store.add(entries, (item["from"], item["to"]), item["expired"], has_turn=True)
    return {"accepted": found.accepted.num_rows, "duplicates": found.duplicates.num_rows, "runs": {str(bucket): listed(runs)}}


def _judged_rows(connections: Connections, item: Item, step: Sequence[Arrived], counts: dict[str, int]) -> pa.Table:
    """What dedup goes by, of the rows that come through the stages; what a plan has decided is not tried again."""
    made = run(config_of(connections, item["config"]), connections.engine, step, item["poison"])
    add_counts(counts, made.counts)
    return made.rows.select([name for name in _JUDGED if name in made.rows.column_names])


def _cut(frames: list[Arrived], most: int) -> Iterator[list[Arrived]]:
    """At most so many neighbouring parts with about as many records each."""
    ends = np.cumsum([frame.message.rows for frame in frames])
    borders = (np.searchsorted(ends, ends[-1] * np.arange(1, most) / most) + 1).tolist()
    for first, last in zip([0, *borders], [*borders, len(frames)], strict=True):
        if first < last:
            yield frames[first:last]


def places(rows: pa.Table) -> Words:
    """Raw sequence and ordinal of each row, as one number."""
    found: Words = (rows.column("_tf_sequence").to_numpy() << SEQUENCE_BITS) | rows.column("_tf_ordinal").to_numpy().astype(np.uint64)
    return found


def among(rows: pa.Table, known: Words) -> pa.Table:
    """The rows whose places are in `known`, which is sorted and may be far longer."""
    own = places(rows)
    at = np.searchsorted(known, own)
    is_known = at < len(known)
    is_known[is_known] = known[at[is_known]] == own[is_known]
    return rows.filter(pa.array(is_known))


def _bits(sequence: int, accepted: Words) -> str:
    """The ordinals of one frame that are in `accepted`, a bit each."""
    low, high = np.searchsorted(accepted, np.array([sequence, sequence + 1], dtype=np.uint64) << SEQUENCE_BITS)
    ordinals = accepted[low:high] & np.uint64(2**32 - 1)
    is_accepted = np.zeros(int(ordinals[-1]) + 1 if len(ordinals) else 0, dtype=bool)
    is_accepted[ordinals] = True
    return b64encode(np.packbits(is_accepted).tobytes()).decode()


def _accepted(step: Sequence[Arrived], bits: dict[str, str]) -> Words:
    """The places of the frames' accepted records, sorted: inverse of `_bits`."""
    parts = [np.empty(0, np.uint64)]
    for frame in step:
        sequence = frame.message.sequence
        (ordinals,) = np.unpackbits(np.frombuffer(b64decode(bits[str(sequence)]), dtype=np.uint8)).nonzero()
        parts.append((np.uint64(sequence) << SEQUENCE_BITS) | ordinals.astype(np.uint64))
    return np.concatenate(parts)
