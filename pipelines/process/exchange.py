"""A large plan of process on several processes: stretches of its frames through the stages, an exchange by bucket, then the buckets.

First each process takes a stretch of the frames through the stages, and holds its rows by bucket. The leg admits the dead letters of all.
Where a dedup stands before a join, the copies are found next, from the keys alone, by the buckets of the dedup's key.
Then each process fetches the rows of some buckets from all who hold such, and does with them what the leg alone does with every bucket.
The leg appends the dead letters. Only the leg knows the whole plan: a lane that is lost takes rows with it, and the plan is begun again.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa

from pipelines.connectors.nats.contiguous import check_contiguous
from pipelines.engine.connections import Connections
from pipelines.process.arrivals import STEP_BYTES, Arrived, steps
from pipelines.process.buckets import BUCKET_THREADS, Buckets, owners_of, partition_owners, shares
from pipelines.process.exchange_items import (
    BucketsItem,
    BucketsReport,
    CopiesItem,
    CopiesReport,
    Place,
    StagesItem,
    StagesReport,
    held_in,
    packed,
    stretch_name,
    unpacked,
)
from pipelines.process.items import ProcessItem, ProcessReport, SubjectTail
from pipelines.process.join.progress import Fact
from pipelines.process.joining import Joining, facts_by, frames_of, telling, waiting_buckets, watermarks_behind
from pipelines.process.program import Program
from pipelines.process.run import Made, add_counts, new_counts, run_step
from pipelines.process.side_copies import copies_among, keys_by_place, without_copies
from pipelines.process.stage_config import planned
from pipelines.process.steps.join import Join
from pipelines.process.watermarks import FrameTimes
from pipelines.protocol.bodies import NOTHING, Watermarks
from pipelines.protocol.codec import from_text, to_text
from pipelines.protocol.failpoints import reach
from pipelines.protocol.outcomes import DUPLICATE
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, first_rows
from pipelines.protocol.records import decode_parcel, encode_frame, joined
from pipelines.protocol.run_lists import Lists

STAGES_PART, COPIES_PART, BUCKETS_PART = "stages", "copies", "buckets"
"""The names of the work that a lane does for process."""
_COPIES = "copies"
"""The name under which the leg holds the positions of the copies."""
T = TypeVar("T")
Admit = Callable[[Sequence[Arrived], Made], object]
"""Checks what the stages have made of some frames, and counts it; raises what stops the plan."""


def process_exchanged(
    connections: Connections, config: Program, item: ProcessItem, frames: Sequence[Arrived], parts: int, admitted: Admit
) -> ProcessReport:
    """Do a plan in so many parts, here and in lanes; return its report, with the counts of the buckets.

    Raise RetryableError if a lane is lost that holds rows, and what `admitted` raises, before anything is appended.
    """
    lanes, exchange = connections.lanes, uuid4().hex
    stretches = stretches_of(frames, lanes.weights(STAGES_PART, parts))
    items = [_stages_item(item, exchange, number, stretch) for number, stretch in enumerate(stretches)]
    lanes.shelf.clear(exchange)
    staged = lanes.divide(
        STAGES_PART, items, lambda one: _staged(connections, one, stretches[one.number]), _staged_of, sizes=[*map(_rows, stretches)]
    )
    for stretch, (report, dead_letters) in zip(stretches, staged, strict=True):
        admitted(stretch, Made(dead_letters.slice(0, 0), dead_letters, report.counts))
    times = item.times or tuple(time for report, _ in staged for time in report.times)
    found = sorted({*(int(bucket) for report, _ in staged for bucket in report.rows), *waiting_buckets(config, item)})
    count = lanes.parts_for(_rows(frames))
    holders = tuple(report.holder for report, _ in staged)
    # Of a plan's records that are not tried only a join meets some behind the exchange.
    plan = item if config.join else replace(item, poison=())
    copies, runs = _find_copies(connections, config, item, exchange, [report for report, _ in staged], count)
    arrivals = tuple(frame.arrival_us for frame in frames) if config.join else ()
    whole = BucketsItem(plan, exchange, holders, (), times, arrivals)
    places, sizes = [], Counter[str]()
    for report, _ in staged:
        sizes.update(report.rows)
    dealt = [*filter(None, _dealt(found, lanes.weights(BUCKETS_PART, count)))]
    for number, share in enumerate(dealt):
        places.append(Place(exchange, f"item {number}"))
        lanes.shelf.put(exchange, places[-1].name, to_text(_of_buckets(whole, share)).encode())
    with telling(times):
        rows = [sum(sizes[str(bucket)] for bucket in share) for share in dealt]
        appended = lanes.divide(BUCKETS_PART, places, lambda place: _appended(connections, place), _appended_of, rows) if places else []
    lanes.shelf.clear("")
    reach("process.between-frames")
    closed = _closed(connections, config, item, [dead_letters for _, dead_letters in staged], appended, times)
    counts = {**closed.counts, **({DUPLICATE.total: copies} if copies else {})}
    return replace(closed, counts=counts, runs={**runs, **closed.runs})


def _stages_item(item: ProcessItem, exchange: str, number: int, stretch: Sequence[Arrived]) -> StagesItem:
    first, last = stretch[0].message.sequence, stretch[-1].message.sequence
    return StagesItem(
        exchange=exchange,
        number=number,
        start=first - 1,
        to=last,
        config=item.config,
        arrivals=tuple(frame.arrival_us for frame in stretch),
        poison=tuple(one for one in item.poison if first <= one[0] <= last),
        lookups=item.lookups,
        step_frames=item.step_frames,
    )


def _of_buckets(whole: BucketsItem, buckets: Sequence[int]) -> BucketsItem:
    runs = {key: listing for key, listing in whole.plan.runs.items() if int(key.rpartition("/")[2]) in buckets}
    return replace(whole, plan=replace(whole.plan, runs=runs), buckets=tuple(buckets))


def _rows(frames: Sequence[Arrived]) -> int:
    return sum(frame.message.rows for frame in frames)


def _dealt(places: Sequence[T], weights: Sequence[float]) -> list[Sequence[T]]:
    """Return what each process does of the buckets, or of the places of keys, by its weight: first the leg's own."""
    ends = np.rint(np.cumsum(weights) * (len(places) / sum(weights))).astype(int)
    return [places[first:end] for first, end in pairwise([0, *ends.tolist()])]


def stretches_of(frames: Sequence[Arrived], weights: Sequence[float]) -> list[Sequence[Arrived]]:
    """Return the stretches into which frames are cut, at most one for each weight, with so much of the rows: first the leg's own."""
    ends = np.cumsum([frame.message.rows for frame in frames])
    targets = np.cumsum(weights)[:-1] * (ends[-1] / sum(weights))
    cuts = np.searchsorted(ends, targets.astype(int)) + 1
    return [frames[first:end] for first, end in pairwise(sorted({0, *cuts.tolist(), len(frames)}))]


# The stages.


def stages_part(connections: Connections, text: str) -> bytes:
    """Take a stretch, a `StagesItem` as text, through the stages, and hold its rows. The work of a lane.

    Raise RetryableError while a frame is not served.
    """
    item = from_text(StagesItem, text)
    names = connections.names
    messages = list(connections.log.fetch(names.stream("raw"), names.subjects("raw"), item.start, item.to))
    check_contiguous(names.stream("raw"), [message.sequence for message in messages], item.start, item.to)
    connections.lanes.shelf.clear(item.exchange)
    report, dead_letters = _staged(connections, item, [Arrived(*frame) for frame in zip(messages, item.arrivals, strict=True)])
    return packed(report, encode_frame(dead_letters))


def _staged_of(content: bytes) -> tuple[StagesReport, pa.Table]:
    report, dead_letters = unpacked(StagesReport, content)
    return report, decode_parcel(dead_letters)


def _staged(connections: Connections, item: StagesItem, frames: Sequence[Arrived]) -> tuple[StagesReport, pa.Table]:
    config, counts, lanes = planned(connections, item.config, item.lookups), new_counts(), connections.lanes
    rows, dead_letters = [], []
    for step in steps(frames, STEP_BYTES // config.widening, item.step_frames):
        made = run_step(connections, config, step, item.poison)
        add_counts(counts, made.counts)
        rows.append(made.rows)
        dead_letters.append(made.dead_letters)
    together = joined(rows)
    keys = keys_by_place(together, config, config.buckets)
    rows_of = {str(bucket): share for bucket, share in shares(together, owners_of(together, config))}
    for name, table in (*keys.items(), *rows_of.items()):
        lanes.shelf.put(item.exchange, stretch_name(item.number, name), table)
    window_us, timed = config.dedup.window_us, [frame.message for frame in frames]
    times = facts_by(config, together, timed)
    if config.dedup.time_field:
        times = tuple(FrameTimes.of(first_rows(together), timed, NOTHING, window_us, config.sources).rows())
    sizes = {name: table.num_rows for name, table in rows_of.items()}
    return StagesReport(lanes.own, sizes, tuple(keys), counts, times), joined(dead_letters)


# The copies of a dedup before a join.


def _find_copies(
    connections: Connections, config: Program, item: ProcessItem, exchange: str, staged: Sequence[StagesReport], count: int
) -> tuple[int, Lists]:
    """Find the copies on each side of a join, in so many parts, and hold their positions; return (their number, the new segments)."""
    if not config.side_dedups:
        return 0, {}
    lanes, holders = connections.lanes, tuple(report.holder for report in staged)
    places = sorted({place for report in staged for place in report.keys})
    parts = []
    for number, share in enumerate(filter(None, _dealt(places, lanes.weights(COPIES_PART, count)))):
        runs = {place: item.runs[place] for place in share if place in item.runs}
        of_share = CopiesItem(replace(item, runs=runs, tails={}, poison=()), exchange, holders, tuple(share))
        parts.append(Place(exchange, f"copies {number}"))
        lanes.shelf.put(exchange, parts[-1].name, to_text(of_share).encode())
    found = lanes.divide(COPIES_PART, parts, lambda place: _copies(connections, place), _copies_read) if parts else []
    positions = np.sort(np.concatenate([NO_POSITIONS, *(positions for _, positions in found)]))
    lanes.shelf.put(exchange, _COPIES, positions.tobytes())
    return len(positions), {place: listing for report, _ in found for place, listing in report.runs.items()}


def copies_part(connections: Connections, text: str) -> bytes:
    """Find the copies in some buckets of a plan, a `CopiesItem` that lies at a `Place`, which is given as text. The work of a lane.

    Raise RetryableError if a process that holds some of it does not answer.
    """
    report, positions = _copies(connections, from_text(Place, text))
    return packed(report, positions.tobytes())


def _copies_read(content: bytes) -> tuple[CopiesReport, RawPositions]:
    report, positions = unpacked(CopiesReport, content)
    return report, np.frombuffer(positions, dtype=np.uint64)


def _copies(connections: Connections, place: Place) -> tuple[CopiesReport, RawPositions]:
    item = from_text(CopiesItem, connections.lanes.fetch(0, place.exchange, place.name))
    config = planned(connections, item.plan.config, item.plan.lookups)
    buckets = Buckets(connections, config, item.plan)
    keys = {name: joined(held_in(connections, item.exchange, item.holders, name)) for name in item.places}
    positions = copies_among(keys, config, buckets)
    if connections.lanes.own:
        for key in buckets.runs:
            _discard_copies(connections, item.plan, buckets, key)
    return CopiesReport(buckets.runs), positions


def _copies_of(connections: Connections, exchange: str) -> RawPositions:
    """Return the positions of all copies of a plan, which the leg holds."""
    return np.frombuffer(connections.lanes.fetch(0, exchange, _COPIES), dtype=np.uint64)


# The buckets.


def buckets_part(connections: Connections, text: str) -> bytes:
    """Do some buckets of a plan, a `BucketsItem` that lies at a `Place`, which is given as text. The work of a lane.

    Raise RetryableError if a process that holds some of it does not answer.
    """
    report, late = _appended(connections, from_text(Place, text))
    return packed(report, encode_frame(joined([late[bucket] for bucket in sorted(late)])) if late else b"")


def _appended_of(content: bytes) -> tuple[BucketsReport, dict[int, pa.Table]]:
    report, payload = unpacked(BucketsReport, content)
    late = {}
    if report.late:
        rest = decode_parcel(payload)
        for bucket in sorted(map(int, report.late)):
            count = report.late[str(bucket)]
            late[bucket], rest = rest.slice(0, count), rest.slice(count)
    return report, late


def _appended(connections: Connections, place: Place) -> tuple[BucketsReport, dict[int, pa.Table]]:
    """Drop the copies of some buckets, or join them, and append their rows; return the late dead letters by bucket."""
    item = from_text(BucketsItem, connections.lanes.fetch(0, place.exchange, place.name))
    config = planned(connections, item.plan.config, item.plan.lookups)
    buckets = Buckets(connections, config, item.plan)
    if config.join is not None:
        return _joined(connections, config, config.join, item, buckets)
    times = _times(config, item.plan, item.times)

    def done(bucket: int) -> tuple[dict[str, int], pa.Table | None]:
        found = buckets.append_bucket(bucket, joined(held_in(connections, item.exchange, item.holders, str(bucket))), times)
        if config.dedup.key and connections.lanes.own:
            _discard_copies(connections, item.plan, buckets, str(bucket))
        return found

    counts, late = Counter[str](), {}
    with connections.means.threads(BUCKET_THREADS, "bucket") as workers:
        for bucket, working in [(bucket, workers.submit(done, bucket)) for bucket in item.buckets]:
            of_bucket, late_letters = working.result()
            counts.update(of_bucket)
            if late_letters is not None:
                late[bucket] = late_letters
    return BucketsReport(dict(counts), buckets.tails(), buckets.runs, _sizes(late)), late


def _sizes(late: Mapping[int, pa.Table]) -> dict[str, int]:
    return {str(bucket): letters.num_rows for bucket, letters in late.items()}


def _joined(
    connections: Connections, config: Program, join: Join, item: BucketsItem, buckets: Buckets
) -> tuple[BucketsReport, dict[int, pa.Table]]:
    """Join some buckets of a plan, and append what comes of it; return the late dead letters by bucket."""
    copies = _copies_of(connections, item.exchange) if config.side_dedups else NO_POSITIONS
    rows = {
        bucket: without_copies(joined(found), copies)
        for bucket in item.buckets
        if (found := held_in(connections, item.exchange, item.holders, str(bucket)))
    }
    of_plan = frames_of(join, item.plan.start, item.plan, item.arrivals, item.times)
    appended = Joining(connections, config, item.plan, buckets, of_plan).append(rows, item.buckets)
    if connections.lanes.own:
        for key in buckets.runs:
            _discard_copies(connections, item.plan, buckets, key)
    return BucketsReport(appended.counts, buckets.tails(), buckets.runs, _sizes(appended.late), appended.waiting), appended.late


def _discard_copies(connections: Connections, plan: ProcessItem, buckets: Buckets, key: str) -> None:
    """Discard copies of segments on this host that no plan needs; the leg deletes the segments, and the copies on its own host."""
    needed = [*plan.runs.get(key, []), *buckets.runs[key]]
    connections.segments(key).discard_copies({listed[0] for listed in needed})


def _times(config: Program, plan: ProcessItem, times: Sequence[Fact]) -> FrameTimes | None:
    return FrameTimes.of_rows(times, plan.watermarks, config.dedup.window_us) if config.dedup.time_field else None


def _watermarks(config: Program, plan: ProcessItem, times: Sequence[Fact]) -> Watermarks | None:
    """Return the watermarks behind a plan; None if it goes by arrivals."""
    if config.join is not None:
        return watermarks_behind(frames_of(config.join, plan.start, plan, (), times))
    of_dedup = _times(config, plan, times)
    return of_dedup.last if of_dedup else None


def _closed(
    connections: Connections,
    config: Program,
    item: ProcessItem,
    refused: Sequence[pa.Table],
    appended: Sequence[tuple[BucketsReport, dict[int, pa.Table]]],
    times: Sequence[Fact],
) -> ProcessReport:
    """Append the dead letters of the plan, in position order; return its report."""
    buckets = Buckets(connections, config, item)
    together = joined(list(refused))
    by_bucket = {bucket: [share] for bucket, share in shares(together, partition_owners(together, config.buckets))}
    counts: Counter[str] = Counter()
    tails: dict[str, SubjectTail] = {}
    runs: Lists = {}
    waiting = [report.waiting for report, _ in appended if report.waiting]
    for report, late in appended:
        counts.update(report.counts)
        tails |= report.tails
        runs |= report.runs
        for bucket, letters in late.items():
            by_bucket.setdefault(bucket, []).append(letters)
    for bucket, letters in sorted(by_bucket.items()):
        buckets.append_dead_letters(bucket, letters)
    oldest = min(waiting, key=lambda one: (one.sequence, one.ordinal), default=None)
    return ProcessReport(dict(counts), {**tails, **buckets.tails()}, runs, _watermarks(config, item, times), oldest)
