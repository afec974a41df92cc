"""The way of a rebuild as Spark tasks: one per slot, and then one per bucket.

Tasks take frames through the stages and send keys, times and places to the key's bucket; the bucket's task deduplicates them and writes its
segment. A second attempt of a task starts from the same listing and writes under new names.
"""

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pipelines.engine.connections import Connections
from pipelines.engine.execute import Exchange, Parcel, Tasks
from pipelines.errors import RetryableError
from pipelines.key_store.index import Words
from pipelines.maintenance.rebuild_ways import RebuildItem, RebuildReport, add_keys_of, among, replayed_rows
from pipelines.process.arrivals import Arrived, arrivals, steps
from pipelines.process.buckets import key_owners, shares
from pipelines.process.program import Program, new_counts
from pipelines.process.stage_config import config_of
from pipelines.process.watermarks import FrameTimes
from pipelines.protocol.bodies import NOTHING, ClockReset, Watermarks
from pipelines.protocol.codec import Base64, Count, Long, Text
from pipelines.protocol.positions import ordinals_of, packed
from pipelines.protocol.records import decode_parcel, encode_frame

FRAMES_PER_SCAN = 2_000
RECORDS_PER_BUCKET = 500_000
"""Records of a portion per bucket: this bounds the memory of a bucket's task."""
_ROWS, _COUNTS, _TIMES = "rows", "counts", "times"
"""Kinds of parcels."""


@dataclass(frozen=True, kw_only=True)
class SliceItem(RebuildItem):
    """A part of the portion for one task. `frames`: the sequence and the arrival of each of its frames.

    `accepted`: for each frame a bit per accepted record, if dedup is not applied again.
    """

    frames: tuple[tuple[Count, Long], ...]
    accepted: dict[Text, Base64] | None = None


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
        items = []
        for part in _cut(frames, self._tasks.slots):
            known = tuple((frame.message.sequence, frame.arrival_us) for frame in part)
            bits = None if accepted is None else {str(sequence): _bits(sequence, accepted) for sequence, _ in known}
            of_slice = {**vars(item), "start": known[0][0] - 1, "to": known[-1][0], "runs": {}}
            items.append(SliceItem(**of_slice, frames=known, accepted=bits))
        return self._tasks.exchange(REBUILD, items, item, item.buckets)


def send_keys(connections: Connections, item: SliceItem) -> Iterator[Parcel]:
    """Take a slice of the portion through the stages; yield the input of dedup to the key's bucket, and the frames' times to all."""
    config, counts = config_of(connections, item.config), new_counts()
    for step in steps(_fetched(connections, item)):
        rows = replayed_rows(connections, item, step, counts)
        if config.dedup.time_field:
            yield from _times_to_all(rows, step, item.buckets)
        if item.accepted is not None:
            rows = among(rows, _accepted(step, item.accepted))
        for bucket, part in shares(rows, key_owners(rows, item.buckets)):
            yield bucket, _ROWS, encode_frame(part)
    yield 0, _COUNTS, json.dumps(counts).encode()


def add_keys(connections: Connections, item: RebuildItem, bucket: int, parcels: list[tuple[str, bytes]]) -> RebuildReport:
    """Replay the rows of the portion in `bucket`, in position order, with the bucket's store."""
    config = config_of(connections, item.config)
    times = _times_of(parcels, item.watermarks, config)
    counts: Counter[str] = Counter()
    for kind, payload in parcels:
        if kind == _COUNTS:
            counts.update(json.loads(payload))
    report = RebuildReport(dict(counts), times.last if times is not None else None)
    rows = [decode_parcel(payload) for kind, payload in parcels if kind == _ROWS]
    if not rows:
        return report
    added = add_keys_of(connections, item, bucket, pa.concat_tables(rows, promote_options="default"), times)
    return replace(added, counts=report.counts, watermarks=report.watermarks)


REBUILD = Exchange(send_keys, add_keys, SliceItem, RebuildItem, RebuildReport)


def _times_to_all(rows: pa.Table, step: Sequence[Arrived], buckets: int) -> Iterator[Parcel]:
    """Yield the times of the frames of a step, whose rows are `rows`, to each bucket."""
    found = FrameTimes.of(rows, (frame.message for frame in step), NOTHING, 0)
    times = json.dumps(found.rows()).encode()
    yield from ((bucket, _TIMES, times) for bucket in range(buckets))


def _times_of(parcels: Iterable[tuple[str, bytes]], before: Watermarks, config: Program) -> FrameTimes | None:
    """Return the times that `_times_to_all` has sent for all frames of a range after `before`.

    None if the window is not measured on a field.
    """
    if not config.dedup.time_field:
        return None
    rows = (tuple(row) for kind, payload in parcels if kind == _TIMES for row in json.loads(payload))
    return FrameTimes.of_rows(rows, before, config.dedup.window_us)


def _fetched(connections: Connections, item: SliceItem) -> Iterator[Arrived]:
    """Yield the frames of a slice, exactly those that the scan named: a gap must stop the task."""
    stream, subjects = connections.names.stream("raw"), connections.names.subjects("raw")
    found = connections.log.fetch(stream, subjects, item.start, item.to)
    for sequence, arrival_us in item.frames:
        message = next(found, None)
        if message is None or message.sequence != sequence:
            raise RetryableError(f"reading {stream}: sequence {sequence} is not served yet by the replica that answered")
        yield Arrived(message, arrival_us)


def _cut(frames: list[Arrived], most: int) -> Iterator[list[Arrived]]:
    """Yield at most this many neighboring parts with about as many records each."""
    ends = np.cumsum([frame.message.rows for frame in frames])
    borders = (np.searchsorted(ends, ends[-1] * np.arange(1, most) / most) + 1).tolist()
    for first, last in zip([0, *borders], [*borders, len(frames)], strict=True):
        if first < last:
            yield frames[first:last]


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
