"""The process leg's work on raw frames: through the stages, and then to the buckets.

Without dedup a bucket holds the records of its Kafka partitions. With dedup it holds keys: all rows of a plan in a bucket are handled
together. `maintenance.rebuild_ways` does the first part of the work again.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.connections import Connections
from pipelines.errors import UndecidedError
from pipelines.process.admission import STAGES, admit
from pipelines.process.arrivals import STEP_BYTES, Arrived, steps
from pipelines.process.buckets import Buckets, key_owners, partition_owners, shares
from pipelines.process.isolation import INTERNAL_ERROR, Decided
from pipelines.process.items import ProcessItem, ProcessReport
from pipelines.process.program import Program, add_counts, new_counts, run
from pipelines.process.stage_config import config_of
from pipelines.process.watermarks import FrameTimes
from pipelines.protocol.bodies import Watermarks
from pipelines.protocol.failpoints import reach
from pipelines.protocol.naming import is_redriven
from pipelines.protocol.records import joined

BUCKET_THREADS = 8


def frame_times(rows: pa.Table, frames: Iterable[Arrived], before: Watermarks, config: Program) -> FrameTimes | None:
    """Return the times of all frames of a range after `before`, from the range's rows; None if the window is not measured on a field."""
    if not config.dedup.time_field:
        return None
    return FrameTimes.of(rows, (frame.message for frame in frames), before, config.dedup.window_us)


def _report(buckets: Buckets, counts: Counter[str], frames: FrameTimes | None) -> ProcessReport:
    return ProcessReport(dict(counts), buckets.tails(), buckets.runs, frames.last if frames is not None else None)


def process_frames(connections: Connections, config: Program, item: ProcessItem, frames: Iterable[Arrived]) -> ProcessReport:
    """Take all frames of a plan in sequence order through the stages; append the frames that the buckets' subjects do not hold yet.

    Counts are taken from the stages, so a replay reports the same.
    """
    buckets = Buckets(connections, config, item)
    counts = Counter(new_counts())
    frames = list(frames) if config.dedup.key else frames
    passed = (_admitted(connections, item, step, counts) for step in steps(frames, STEP_BYTES // config.widening, item.step_frames))
    times = None
    if config.dedup.key:
        rows, rejected = (joined(list(tables)) for tables in zip(*passed, strict=True))
        times = frame_times(rows, frames, item.watermarks, config)
        _append_by_key(buckets, config, rows, rejected, times, counts)
    else:
        _append_in_order(buckets, passed)
    reach("process.after-publish")
    return _report(buckets, counts, times)


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


def _append_by_key(
    buckets: Buckets, config: Program, rows: pa.Table, rejected: pa.Table, times: FrameTimes | None, counts: Counter[str]
) -> None:
    """Append to the buckets in parallel: each mostly waits for the disk."""
    keyed = dict(shares(rows, key_owners(rows, config.buckets)))
    refused = dict(shares(rejected, partition_owners(rejected, config.buckets)))
    with buckets.means.threads(BUCKET_THREADS, "bucket") as workers:
        owners = sorted({*keyed, *refused})
        work = [workers.submit(buckets.append_bucket, bucket, keyed.get(bucket), refused.get(bucket), times) for bucket in owners]
        for done in work:
            counts.update(done.result())


def _admitted(connections: Connections, item: ProcessItem, step: Sequence[Arrived], counts: dict[str, int]) -> tuple[pa.Table, pa.Table]:
    """Return (rows, dead letters) of some frames; add to `counts`.

    Raise HaltError if the dead letters must not be written, UndecidedError if the plan must name some of them first.
    """
    try:
        made = run(config_of(connections, item.config), connections.engine, step, item.poison, connections.means.open_engine)
    except Exception:
        connections.discard_engine()
        raise
    seen = (sum(frame.message.rows for frame in step if not is_redriven(frame.message.subject)), "", step[-1].message.sequence)
    admit(connections, item.config, STAGES, seen, made.dead_letters)
    if found := undecided(made.dead_letters, item.poison):
        connections.discard_engine()
        raise UndecidedError(f"{len(found)} records are not decided yet: {found[0][4]}", found)
    add_counts(counts, made.counts)
    return made.rows, made.dead_letters


def undecided(rejected: pa.Table, decided: Decided) -> list[list[Any]]:
    """Return the dead letters of internal errors that are not decided yet, in the form of `UndecidedError`."""
    internal = rejected.filter(pc.equal(rejected.column("code"), INTERNAL_ERROR))
    if internal.num_rows == 0:
        return []
    known = {(place[0], place[1]) for place in decided}
    columns = ("_tf_sequence", "_tf_ordinal", "_tf_partition", "stage", "message")
    found = zip(*(internal.column(name).to_pylist() for name in columns), strict=True)
    return [list(place) for place in found if (place[0], place[1]) not in known]
