"""The process leg's work on raw frames: through the stages, and then to the buckets.

Without dedup a bucket holds the records of its Kafka partitions. With dedup, or a join, it holds keys: all rows of a plan in a bucket are
handled together. `maintenance.rebuild` does the first part of the work again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

import pyarrow as pa

from pipelines.engine.connections import Connections
from pipelines.errors import UndecidedError
from pipelines.process.admission import STAGES, admit
from pipelines.process.arrivals import STEP_BYTES, Arrived, steps
from pipelines.process.buckets import BUCKET_THREADS, Buckets, key_owners, partition_owners, shares
from pipelines.process.exchange import process_exchanged
from pipelines.process.isolation import undecided
from pipelines.process.items import ProcessItem, ProcessReport
from pipelines.process.joining import Appended, Joining, facts_by, frames_of, telling, waiting_buckets, watermarks_behind
from pipelines.process.program import Program
from pipelines.process.run import Made, add_counts, new_counts, run_step
from pipelines.process.side_copies import copies_among, keys_by_place, without_copies
from pipelines.process.watermarks import FrameTimes
from pipelines.protocol.bodies import Watermarks
from pipelines.protocol.failpoints import reach
from pipelines.protocol.naming import is_redriven
from pipelines.protocol.outcomes import DUPLICATE
from pipelines.protocol.positions import first_rows
from pipelines.protocol.records import joined

NO_LATE: Mapping[int, pa.Table] = {}
Admitted = Callable[[Sequence[Arrived], Made], tuple[pa.Table, pa.Table]]
"""Returns (rows, dead letters) of some frames, or raises what stops the plan."""


def frame_times(rows: pa.Table, frames: Iterable[Arrived], before: Watermarks, config: Program) -> FrameTimes | None:
    """Return the times of all frames of a range after `before`, from the range's rows; None if the window is not measured on a field."""
    if not config.dedup.time_field:
        return None
    return FrameTimes.of(first_rows(rows), (frame.message for frame in frames), before, config.dedup.window_us, config.sources)


def process_frames(connections: Connections, config: Program, item: ProcessItem, frames: Iterable[Arrived]) -> ProcessReport:
    """Take all frames of a plan in sequence order through the stages; append the frames that the buckets' subjects do not hold yet.

    Counts are taken from the stages, so a replay reports the same. Where the plan is large, lanes do parts of it.
    """
    counts, frames = Counter(new_counts()), list(frames)

    def admitted(step: Sequence[Arrived], made: Made) -> tuple[pa.Table, pa.Table]:
        return _admitted(connections, item, step, made, counts)

    parts = connections.lanes.parts_for(sum(frame.message.rows for frame in frames)) if len(frames) > 1 else 1
    if parts > 1:
        report = process_exchanged(connections, config, item, frames, parts, admitted)
    else:
        report = _process_here(connections, config, item, frames, admitted)
    reach("process.after-publish")
    counts.update(report.counts)
    return replace(report, counts=dict(counts))


def _process_here(
    connections: Connections, config: Program, item: ProcessItem, frames: Sequence[Arrived], admitted: Admitted
) -> ProcessReport:
    """Do a plan in this process; return its report, with the counts of the buckets."""
    buckets = Buckets(connections, config, item)
    portions = [*steps(frames, STEP_BYTES // config.widening, item.step_frames)]
    passed = (admitted(step, run_step(connections, config, step, item.poison)) for step in portions)
    if not config.is_keyed:
        if len(portions) > 1:
            _append_in_order(buckets, passed)
        else:
            buckets.append(*next(passed))
        return ProcessReport({}, buckets.tails(), buckets.runs)
    rows, rejected = (joined(list(tables)) for tables in zip(*passed, strict=True))
    if config.join is not None:
        appended, watermarks = _append_joined(connections, config, item, buckets, rows, frames)
        _append_by_key(buckets, config, rows.slice(0, 0), rejected, None, appended.late)
        return ProcessReport(appended.counts, buckets.tails(), buckets.runs, watermarks, appended.waiting)
    times = frame_times(rows, frames, item.watermarks, config)
    counts = _append_by_key(buckets, config, rows, rejected, times)
    return ProcessReport(dict(counts), buckets.tails(), buckets.runs, times.last if times is not None else None)


def _append_in_order(buckets: Buckets, passed: Iterable[tuple[pa.Table, pa.Table]]) -> None:
    """Append the steps in order, on a thread of its own, one step behind the stages."""
    with buckets.means.threads(1, "append") as publisher:
        last: Future[None] | None = None
        for rows, rejected in passed:
            if last is not None:
                last.result()
            last = publisher.submit(buckets.append, rows, rejected)
        if last is not None:
            last.result()


def _append_joined(
    connections: Connections, config: Program, item: ProcessItem, buckets: Buckets, rows: pa.Table, frames: Sequence[Arrived]
) -> tuple[Appended, Watermarks | None]:
    """Join the rows of a plan, without the copies of each side, with what waits; return what has come of it, and the watermarks behind."""
    assert config.join is not None
    copies = copies_among(keys_by_place(rows, config, config.buckets), config, buckets)
    by_bucket = {bucket: without_copies(share, copies) for bucket, share in shares(rows, key_owners(rows, config.buckets))}
    facts = item.times or facts_by(config, rows, (frame.message for frame in frames))
    of_plan = frames_of(config.join, item.start, item, [frame.arrival_us for frame in frames], facts)
    with telling(facts):
        appended = Joining(connections, config, item, buckets, of_plan).append(by_bucket, waiting_buckets(config, item))
    counts = {**appended.counts, **({DUPLICATE.total: len(copies)} if len(copies) else {})}
    return replace(appended, counts=counts), watermarks_behind(of_plan)


def _append_by_key(
    buckets: Buckets,
    config: Program,
    rows: pa.Table,
    rejected: pa.Table,
    times: FrameTimes | None,
    late_of: Mapping[int, pa.Table] = NO_LATE,
) -> Counter[str]:
    """Append to the buckets in parallel, as each mostly waits for the disk; return the counts of their outcomes.

    `late_of`: dead letters of late records that are known already, by bucket.
    """
    keyed = dict(shares(rows, key_owners(rows, config.buckets)))
    refused = dict(shares(rejected, partition_owners(rejected, config.buckets)))

    def append(bucket: int) -> dict[str, int]:
        counts, late = buckets.append_bucket(bucket, keyed[bucket], times) if bucket in keyed else ({}, late_of.get(bucket))
        reach("process.between-frames")
        if dead_letters := [table for table in (refused.get(bucket), late) if table is not None]:
            buckets.append_dead_letters(bucket, dead_letters)
        return counts

    counts: Counter[str] = Counter()
    with buckets.means.threads(BUCKET_THREADS, "bucket") as workers:
        for done in [workers.submit(append, bucket) for bucket in sorted({*keyed, *refused, *late_of})]:
            counts.update(done.result())
    return counts


def _admitted(
    connections: Connections, item: ProcessItem, frames: Sequence[Arrived], made: Made, counts: dict[str, int]
) -> tuple[pa.Table, pa.Table]:
    """Return (rows, dead letters) of some frames; add to `counts`.

    Raise HaltError if the dead letters must not be written, UndecidedError if the plan must name some of them first.
    """
    seen = (sum(frame.message.rows for frame in frames if not is_redriven(frame.message.subject)), "", frames[-1].message.sequence)
    admit(connections, item, STAGES, seen, made.dead_letters)
    if found := undecided(made.dead_letters, item.poison):
        raise UndecidedError(f"{len(found)} records are not decided yet: {found[0][4]}", found)
    add_counts(counts, made.counts)
    return made.rows, made.dead_letters
