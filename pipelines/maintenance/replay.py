"""Reads the processed records again from raw, with keys and times: the stages before dedup, over the frames that are left."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.nats.client import JetStream, fetch_whole
from pipelines.lookups.storage import Snapshots
from pipelines.process.arrivals import arrivals, steps
from pipelines.process.dedup import PAST_COLUMN
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.process.snapshots_of_plans import SnapshotsOfPlans
from pipelines.process.watermarks import TIME_COLUMN, FrameTimes, Times
from pipelines.progress import Progress
from pipelines.protocol.bodies import NEVER, NOTHING, PROCESS_CHAIN, ProcessDone, ProcessPlan, Watermarks
from pipelines.protocol.ledger import Open, read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import first_rows
from pipelines.types.engine import Engine


@dataclass(frozen=True)
class Start:
    """The beginning of a replay: frames after `sequence`, with the watermarks and the arrival, in microseconds, up to there."""

    sequence: int = 0
    watermarks: Watermarks = NOTHING
    clock_us: int = 0

    @classmethod
    def behind(cls, done: ProcessDone) -> "Start":
        return cls(done.to, done.watermarks, done.clock_us)


@dataclass(frozen=True)
class Replayed:
    """A row of each record of some frames, in position order, with KEY_COLUMNS: the records that dedup has compared and that were not late.

    `times`: the times on which the window is measured. `watermarks` are NEVER if these are arrivals. `records`: the number of records in
    the frames.
    """

    rows: pa.Table
    times: Times
    watermarks: Times
    records: int


def start_at(log: JetStream, names: Names, config: Program, sequence: int, arrival_us: int, purged_below: int) -> Start:
    """Return the beginning from which the frame at `sequence`, with this arrival, and all later frames that are left are read."""
    if sequence < purged_below or config.dedup.time_field:
        return done_before(log, names, max(sequence, purged_below + 1))
    return Start(sequence - 1, NOTHING, arrival_us)


def done_before(log: JetStream, names: Names, sequence: int) -> Start:
    """Return the end of the last `done` before `sequence`, from which watermarks can be counted."""
    start = Start()
    for entry in process_entries(log, names, read_chain(log, names, PROCESS_CHAIN).sequence):
        if not isinstance(entry, ProcessDone):
            continue
        if entry.to >= sequence:
            break
        start = Start.behind(entry)
    return start


def process_entries(log: JetStream, names: Names, end: int) -> Iterator[Open | ProcessPlan | ProcessDone]:
    """Yield the entries of the process chain up to ledger sequence `end`, as far as it reaches back."""
    messages = fetch_whole(log, names.stream("ledger"), names.chain(PROCESS_CHAIN.leg), 0, end)
    return (PROCESS_CHAIN.decode(message).body for message in messages)


def snapshots_of_plans(log: JetStream, names: Names, snapshots: Snapshots, config: Program) -> SnapshotsOfPlans:
    """Return the snapshots of the plans of a pipeline; the chain is read only for a program with look-ups."""
    entries = process_entries(log, names, read_chain(log, names, PROCESS_CHAIN).sequence) if config.lookups else ()
    return SnapshotsOfPlans(snapshots, entries)


def replayed(
    log: JetStream, names: Names, engine: Engine, config: Program, start: Start, to: int, progress: Progress, snapshots: Snapshots
) -> Iterator[Replayed]:
    """Yield the rows after `start` up to raw sequence `to` (inclusive), in portions, under one configuration.

    `snapshots`: those of the look-up tables; each frame is read with those that its plan names.
    """
    before = start.watermarks
    done = read_chain(log, names, PROCESS_CHAIN).done
    resets = done.body.clock_resets if done else ()
    of_plans = snapshots_of_plans(log, names, snapshots, config)
    messages = fetch_whole(log, names.stream("raw"), names.subjects("raw"), start.sequence, to)
    portions = (part for step in steps(arrivals(messages, start.clock_us, resets)) for part in of_plans.parts(config, step))
    for program, step in portions:
        progress("replaying the raw stream", step[-1].message.sequence - start.sequence, to - start.sequence)
        made = run(program, engine, step)
        rows, records = first_rows(made.rows), made.counts["rows_in"]
        frames = None
        if config.dedup.time_field:
            frames = FrameTimes.of(rows, (frame.message for frame in step), before, config.dedup.window_us, config.sources)
            before = frames.last
        if PAST_COLUMN in rows.column_names:
            rows = rows.filter(pc.invert(pc.fill_null(rows.column(PAST_COLUMN), False)))
        if frames is None:
            times = rows.column("_tf_arrival").cast(pa.int64()).to_numpy()
            yield Replayed(rows, times, np.full(rows.num_rows, NEVER), records)
            continue
        times = rows.column(TIME_COLUMN).to_numpy()
        marks = frames.watermarks(rows, config.dedup.lateness_us)
        is_timely = times >= marks
        yield Replayed(rows.filter(pa.array(is_timely)), times[is_timely], marks[is_timely], records)
