"""The join of a plan, after the exchange: buckets are joined with their stores, and their rows pass the steps behind the join together.

In: the rows of both sides by bucket, each in position order, and the arrivals, or the times, of all frames of the plan. Out: rows on the
out subjects of the bucket of their key, dead letters on its `dlq.join.<bucket>`, both in the order of their causes, and the segments for
the next `done`. Late records are rejected before, in position order, as those of dedup. What a second attempt appends and stores is the
same: the stores are read as the last `done` lists them.

A record that a step behind the join rejects, or that is unmatched and `unmatched: dead_letter` asks for it, is read again from raw: its
bytes have not crossed the exchange.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.connections import Connections
from pipelines.errors import FunctionHaltError, UndecidedError
from pipelines.key_store.store import bucket_with_turn
from pipelines.process.admission import JOINED, LATE, admit
from pipelines.process.arrivals import read_again
from pipelines.process.buckets import BUCKET_THREADS, JOIN_LETTERS, Buckets, check_not_passed, listed, live_runs, shares, subjects_of
from pipelines.process.dead_letter_rows import dead_letters, with_causes
from pipelines.process.isolation import take_out, undecided
from pipelines.process.items import ProcessItem
from pipelines.process.join.progress import Fact, TimedFrames, facts_of
from pipelines.process.join.rows import GATHERED_ROWS, RIGHT_COLUMNS, SLICE_BYTES, Joined, Slice
from pipelines.process.join.sides import Frames, before
from pipelines.process.join.stores import JoinStores
from pipelines.process.join.timed_stores import TimedJoinStores
from pipelines.process.program import Program
from pipelines.process.run import counts_of_reasons, in_engine
from pipelines.process.steps import Passed, pass_through
from pipelines.process.steps.join import KEPT, UNMATCHED, Join, unmatched
from pipelines.process.watermarks import Clocks
from pipelines.protocol.append import append_rows
from pipelines.protocol.bodies import Waiting, Watermarks
from pipelines.protocol.failpoints import reach
from pipelines.protocol.naming import LEFT_STORE, RIGHT_STORE, listed_as
from pipelines.protocol.outcomes import REJECTED, WAITING
from pipelines.protocol.positions import CAUSE_COLUMNS, Position, packed, position_keys, unpacked
from pipelines.protocol.records import Message
from pipelines.protocol.records import joined as together

_BUCKET = "_tf_bucket"


def frames_of(join_step: Join, start: int, clocks: Clocks, arrivals_us: Sequence[int], facts: Iterable[Fact]) -> Frames | TimedFrames:
    """Return the frames after sequence `start`, each of the next one, by their arrivals, or by their facts. `clocks`: as of `start`."""
    if join_step.is_timed:
        return TimedFrames.of_facts(facts, clocks.watermarks, join_step.lateness_us)
    sequences = np.arange(start + 1, start + 1 + len(arrivals_us), dtype=np.uint64)
    return Frames(sequences, np.array(arrivals_us, dtype=np.int64), clocks.clock_us)


@contextmanager
def telling(facts: Sequence[Fact]) -> Iterator[None]:
    """Tell an error with which a plan is amended the facts by which this attempt has joined: rows of it may be written."""
    try:
        yield
    except (UndecidedError, FunctionHaltError) as error:
        error.times = facts
        raise


def facts_by(config: Program, rows: pa.Table, messages: Iterable[Message]) -> tuple[Fact, ...]:
    """Return the facts of raw frames, of which `rows` has the records before the join; none unless it goes by the records' own times."""
    return tuple(facts_of(rows, messages, config.sources)) if config.join is not None and config.join.is_timed else ()


def watermarks_behind(frames: Frames | TimedFrames) -> Watermarks | None:
    """Return the watermarks behind a range for the next `done`; None if the join goes by arrivals."""
    return frames.last.stored if isinstance(frames, TimedFrames) else None


def waiting_buckets(config: Program, item: ProcessItem) -> set[int]:
    """Return the buckets in which stored left records may wait: those need no record of their own to go on."""
    if config.join is None:
        return set()
    ended_us = before(config.join.clock_us(item), config.join.windows.left_us)
    buckets = range(config.buckets)
    return {b for b in buckets if any(run.newest > ended_us for run in live_runs(item.runs, listed_as(LEFT_STORE, b)))}


def join_stores(connections: Connections, join_step: Join, bucket: int) -> JoinStores | TimedJoinStores:
    """Return the stores of a bucket; the caller opens the segments that the last `done` lists."""

    def made() -> JoinStores | TimedJoinStores:
        right, left = (connections.segments(listed_as(store, bucket)) for store in (RIGHT_STORE, LEFT_STORE))
        return join_step.open_stores(right, left)

    return connections.keep(("join stores", bucket, join_step), made)


@dataclass(frozen=True)
class Appended:
    """What the join has made of a plan: counts, and the oldest left record that waits in the buckets that were joined.

    `late`: dead letters of records that are late, by bucket, which the caller appends.
    """

    counts: dict[str, int]
    waiting: Waiting | None
    late: dict[int, pa.Table]


class Joining:
    """The join of some buckets of a plan. `buckets`: their subjects."""

    def __init__(
        self, connections: Connections, config: Program, item: ProcessItem, buckets: Buckets, frames: Frames | TimedFrames
    ) -> None:
        assert config.join is not None
        self._connections, self._config, self._item, self._buckets, self._frames = connections, config, item, buckets, frames
        self._join = config.join
        self._counts: Counter[str] = Counter()
        self._late: dict[int, pa.Table] = {}

    def append(self, rows: Mapping[int, pa.Table], wanted: Iterable[int]) -> Appended:
        """Join the `wanted` buckets and those that have `rows`, and append what comes of it.

        Raise what `admit` raises, and UndecidedError if the plan must name a record first.
        """
        with self._buckets.means.threads(BUCKET_THREADS, "bucket") as workers:
            working = {bucket: workers.submit(self._joined, bucket, rows.get(bucket)) for bucket in sorted({*wanted, *rows})}
            found = {bucket: one.result() for bucket, one in working.items()}
            for one in found.values():
                self._count(one)
            for letters in self._late.values():
                self._counts.update({REJECTED.total: letters.num_rows, **counts_of_reasons(letters)})
            for batch in _batches(self._slices(found)):
                self._append_batch(batch, workers)
        oldest = min((one.oldest_waiting for one in found.values() if one.oldest_waiting), default=None)
        return Appended(dict(self._counts), Waiting(*unpacked(oldest[0]), oldest[1]) if oldest else None, self._late)

    def _joined(self, bucket: int, rows: pa.Table | None) -> Joined:
        if rows is not None:
            rows = self._without_late(bucket, rows)
        item, stores = self._item, join_stores(self._connections, self._join, bucket)
        keys = [listed_as(store, bucket) for store in (RIGHT_STORE, LEFT_STORE)]
        stores.open(*(live_runs(item.runs, key) for key in keys))
        made = self._join.joined(rows, self._frames, stores)
        reach("process.before-state")
        has_turn = bucket_with_turn(item.to, self._config.buckets) == bucket
        listings = stores.add(made.new_rights, made.new_lefts, (item.start, item.to), self._frames.start_us, has_turn)
        self._buckets.runs |= {key: listed(runs) for key, runs in zip(keys, listings, strict=True)}
        reach("process.after-state")
        return made

    def _without_late(self, bucket: int, rows: pa.Table) -> pa.Table:
        """Return the rows of a bucket without the late ones, whose dead letters are kept for the caller."""
        if not isinstance(self._frames, TimedFrames):
            return rows
        connections = self._connections
        kept, late = self._join.without_late(rows, self._frames)
        letters = late
        if late.num_rows:
            records = read_again(connections.log, connections.names.stream("raw"), late)
            letters = dead_letters(records, self._join.rejected_late(late), self._item.config, source=None, is_past_dedup=True)
            self._late[bucket] = letters
        admit(connections, self._item, LATE, (rows.num_rows, str(bucket), self._item.to), letters)
        return kept

    def _count(self, made: Joined) -> None:
        counts = made.counts
        self._counts.update({KEPT.total: counts.kept, WAITING.total: made.began, WAITING.less: made.began - counts.waiting})
        self._counts.update({"join.joined": counts.joined, "join.unmatched": counts.unmatched, "join.replaced": counts.replaced})
        if self._join.unmatched == "drop":
            self._counts[UNMATCHED.total] += counts.unmatched

    def _slices(self, found: Mapping[int, Joined]) -> Iterator[tuple[int, Slice]]:
        with_unmatched = self._join.unmatched != "drop"
        return ((bucket, part) for bucket, made in found.items() for part in made.slices(with_unmatched))

    def _append_batch(self, batch: pa.Table, workers: Executor) -> None:
        """Take rows of some buckets, in the order of buckets and causes, through the steps behind the join; append what comes of them."""
        is_alone = pc.is_null(batch.column(RIGHT_COLUMNS[0]))
        batch = matched = batch.drop_columns([*RIGHT_COLUMNS])
        rejected = []
        if self._join.unmatched == "dead_letter":
            matched = batch.filter(pc.invert(is_alone))
            rejected.append(unmatched(batch.filter(is_alone), self._join))
        tried = take_out(matched, self._item.poison)
        passed = self._through_steps(tried.accepted)
        self._counts.update(passed.dropped)
        self._append_rejected(pa.concat_tables([*rejected, tried.rejected, passed.rejected]), batch)
        self._counts.update(self._config.tables.counts(passed.accepted))
        by_bucket = shares(passed.accepted, _buckets_of(passed.accepted, batch))
        # Each mostly waits for the disk of NATS.
        for appended in [workers.submit(self._append_for_sinks, bucket, share) for bucket, share in by_bucket]:
            appended.result()

    def _append_for_sinks(self, bucket: int, rows: pa.Table) -> None:
        self._buckets.append_for_sinks(bucket, rows)
        reach("process.between-frames")

    def _through_steps(self, rows: pa.Table) -> Passed:
        config, behind = self._config, rows.drop_columns([_BUCKET])
        return in_engine(
            self._connections,
            lambda engine, renew: pass_through(config.shared_path, config.context(engine), behind, renew),
            lambda passed: passed.rejected,
        )

    def _append_rejected(self, rejected: pa.Table, rows: pa.Table) -> None:
        """Append the dead letters of left records, of which `rows` has the arrivals, causes and buckets."""
        if not rejected.num_rows:
            return
        connections, names, item = self._connections, self._connections.names, self._item
        mine = rows.filter(pa.array(np.isin(position_keys(rows), position_keys(rejected))))
        records = read_again(connections.log, names.stream("raw"), mine)
        letters = dead_letters(records, rejected, item.config, source=None, is_past_dedup=True)
        admit(connections, item, JOINED, (rows.num_rows, "", item.to), letters)
        if found := undecided(letters, item.poison):
            # Left out before a dedup of its side, a record makes room for its copy, whose row may belong before written ones.
            is_alone = False not in self._config.side_dedups
            if is_alone:
                self._check_not_passed(found, mine)
            raise UndecidedError(f"{len(found)} records are not decided yet: {found[0][4]}", found, is_unwritten=is_alone)
        self._counts.update({REJECTED.total: rejected.num_rows, **counts_of_reasons(rejected)})
        letters = with_causes(letters, mine, _BUCKET)
        for bucket, share in shares(letters, letters.column(_BUCKET).to_numpy()):
            appender = self._buckets.appender("dlq", names.dead_letters(JOIN_LETTERS, bucket))
            append_rows(appender, share, beside=(*CAUSE_COLUMNS, _BUCKET))

    def _check_not_passed(self, found: Sequence[Sequence[Any]], rows: pa.Table) -> None:
        """Raise HaltError if an attempt has passed one of these records; `rows` has their causes and buckets.

        Rows of the plan before them, and of other buckets, may be there: portions of what was joined are appended one after the other.
        """
        keys = position_keys(rows)
        for record in found:
            (row,) = rows.filter(pa.array(keys == packed(*record[:2]))).select([*CAUSE_COLUMNS, _BUCKET]).to_pylist()
            bucket, cause = row[_BUCKET], Position(*(row[name] for name in CAUSE_COLUMNS))
            subjects = [place for place in subjects_of(self._connections, bucket) if self._is_by_cause(*place, bucket)]
            check_not_passed(self._connections, (self._item.start, self._item.to), record, subjects, cause)

    def _is_by_cause(self, role: str, subject: str, bucket: int) -> bool:
        """Return True for the subjects that are in the order of causes."""
        topology = self._connections.config.topology
        return role in topology.writes(topology.process) or subject == self._connections.names.dead_letters(JOIN_LETTERS, bucket)


def _buckets_of(rows: pa.Table, batch: pa.Table) -> Any:
    """Return the bucket of each row that the steps let pass; `batch`: the rows before the steps, which keep their order."""
    if rows.num_rows == batch.num_rows:
        return batch.column(_BUCKET).to_numpy()
    is_there = np.isin(position_keys(batch), position_keys(rows))
    return batch.column(_BUCKET).to_numpy()[is_there]


def _batches(slices: Iterator[tuple[int, Slice]]) -> Iterator[pa.Table]:
    """Yield the rows of slices, each with its bucket, so many together as a step through the stages may take."""
    tables: list[pa.Table] = []
    for bucket, part in slices:
        rows = part.rows.append_column(_BUCKET, pa.array(np.full(part.rows.num_rows, bucket)))
        if tables and (sum(map(len, [*tables, rows])) > GATHERED_ROWS or sum(one.nbytes for one in (*tables, rows)) > SLICE_BYTES):
            yield together(tables)
            tables = []
        tables.append(rows)
    if tables:
        yield together(tables)
