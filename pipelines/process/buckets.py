"""The effects of the process leg, bucket by bucket: dedup against the bucket's store, then append the frames that its subjects lack.

Of records that dedup accepts and a later step has dropped (`drop_marks`) the positions are appended: only they show later that the store
holds the record.

With dedup a row's bucket is a function of its key, and all rows of a plan in one bucket are deduplicated together, in position order. With
a join it is, too (`joining`).
Without dedup it is a function of the Kafka partition. A dead letter's bucket is always the bucket of its Kafka partition.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.engine.connections import Connections
from pipelines.errors import HaltError
from pipelines.key_store.segments import RunFacts
from pipelines.key_store.store import KeyedStore, bucket_with_turn
from pipelines.process.admission import LATE, admit
from pipelines.process.arrivals import read_again
from pipelines.process.dead_letter_rows import dead_letters
from pipelines.process.dedup import KEY_COLUMNS, Deduplicated
from pipelines.process.drop_marks import counts_of, parted
from pipelines.process.items import ProcessItem, SubjectTail
from pipelines.process.program import Program
from pipelines.process.steps.dedup import Dedup
from pipelines.process.watermarks import FrameTimes
from pipelines.protocol.append import Appender, Appending, Tail, Written, append_rows, appending_rows, last_position, together
from pipelines.protocol.bodies import PROCESS_CHAIN
from pipelines.protocol.failpoints import reach
from pipelines.protocol.naming import DEDUP_STORE, bucket_of_key, bucket_of_partition, listed_as
from pipelines.protocol.outcomes import DUPLICATE, REJECTED
from pipelines.protocol.positions import SEQUENCE_AND_ORDINAL, Position, in_position_order
from pipelines.protocol.records import HEADER_CONFIG, HEADER_OLDEST, joined
from pipelines.protocol.run_lists import Listing, Lists

JOIN_LETTERS = "join"
"""The token of the dead letters of a join on its subjects: they are in the order of causes, those of the stages in that of positions."""
BUCKET_THREADS = 8


class Buckets:
    """The out, dead-letter and duplicates subjects, and the stores, of the buckets that an item touches."""

    def __init__(self, connections: Connections, config: Program, item: ProcessItem) -> None:
        self._connections, self._config, self._item = connections, config, item
        self.means, self._sinks = connections.means, connections.config.topology.routed
        self._headers = {HEADER_CONFIG: item.config, **({HEADER_OLDEST: str(item.oldest)} if config.join else {})}
        self._by_subject: dict[str, Appender[Position]] = {}
        self.runs: dict[str, Listing] = {}
        """The segments that the next `done` lists, for the buckets that had rows."""

    def append(self, rows: pa.Table, rejected: pa.Table) -> None:
        """Append rows and dead letters of any buckets, each in position order: the rows of all buckets at once, then the dead letters."""
        names, log = self._connections.names, self._connections.log
        by_bucket = shares(rows, partition_owners(rows, self._config.buckets))
        together(log, [appending for bucket, share in by_bucket for appending in self._appending_for_sinks(bucket, share)])
        reach("process.between-frames")
        refused = shares(rejected, partition_owners(rejected, self._config.buckets))
        letters = [(self.appender("dlq", names.dead_letters(PROCESS_CHAIN.leg, bucket)), share) for bucket, share in refused]
        together(log, [appending_rows(appender, share) for appender, share in letters])

    def append_bucket(self, bucket: int, rows: pa.Table, frames: FrameTimes | None) -> tuple[dict[str, int], pa.Table | None]:
        """Append all rows of the plan in `bucket`, given in any order; return the counts of their outcomes, and the dead letters, if any.

        With dedup, duplicates are dropped, a segment is written, and the remaining rows are appended. The store is read exactly as the
        last `done` lists it, so a second attempt gives the same answer. Different buckets may be processed by different threads.
        """
        if not self._config.dedup.key:
            self.append_for_sinks(bucket, in_position_order(rows))
            return {}, None
        counts: Counter[str] = Counter()
        late = self._append_first_of_keys(bucket, rows, frames, counts)
        late_dead_letters = self._late_dead_letters(late) if late.num_rows else late
        admit(self._connections, self._item, LATE, (rows.num_rows, str(bucket), self._item.to), late_dead_letters)
        if late.num_rows == 0:
            return dict(counts), None
        counts.update({REJECTED.total: late.num_rows, "rejected.dedup.late": late.num_rows})
        return dict(counts), late_dead_letters

    def append_for_sinks(self, bucket: int, rows: pa.Table) -> None:
        """Append the rows of a bucket, in the order of its positions, to the stream of each sink that takes some."""
        together(self._connections.log, self._appending_for_sinks(bucket, rows))

    def _appending_for_sinks(self, bucket: int, rows: pa.Table) -> Iterator[Appending[list[Written[Position]]]]:
        for leg in self._sinks:
            mine = self._config.tables.rows_for(rows, leg)
            if mine.num_rows:
                subject = self._connections.names.out(bucket, leg.input_role)
                yield appending_rows(self.appender(leg.input_role, subject), mine, self._headers)

    def append_dead_letters(self, bucket: int, dead_letters: Sequence[pa.Table]) -> None:
        """Append all dead letters of the plan in `bucket`, given in any order."""
        together = in_position_order(joined(dead_letters))
        append_rows(self.appender("dlq", self._connections.names.dead_letters(PROCESS_CHAIN.leg, bucket)), together)

    def _append_first_of_keys(self, bucket: int, rows: pa.Table, frames: FrameTimes | None, counts: Counter[str]) -> pa.Table:
        """Deduplicate and append rows; return the late ones."""
        names = self._connections.names
        deduplicated, late = self.first_of_keys(self._config.dedup, rows, bucket, frames)
        accepted, dropped = parted(deduplicated.accepted)
        self.append_for_sinks(bucket, accepted)
        append_rows(self.appender("duplicates", names.then_dropped(bucket)), dropped.select(list(SEQUENCE_AND_ORDINAL)))
        if self._config.dedup.keeps:
            append_rows(self.appender("duplicates", names.duplicates(bucket)), parted(deduplicated.duplicates)[0])
        counts.update({**self._config.tables.counts(accepted), DUPLICATE.total: deduplicated.counts[1], **counts_of(dropped)})
        return late

    def first_of_keys(
        self, step: Dedup, rows: pa.Table, bucket: int, frames: FrameTimes | None = None, store: str = DEDUP_STORE
    ) -> tuple[Deduplicated, pa.Table]:
        """Return what `Dedup.first_of_keys` makes of all rows of the plan in a bucket of a store; write the keys that it accepts."""
        span, key = (self._item.start, self._item.to), listed_as(store, bucket)
        keys = dedup_store(self._connections, bucket, store)
        keys.open(live_runs(self._item.runs, key))
        deduplicated, late = step.first_of_keys(rows, keys, frames)
        reach("process.before-state")
        has_turn = bucket_with_turn(span[1], self._config.buckets) == bucket
        self.runs[key] = listed(keys.add(deduplicated.entries, span, step.expired_us(self._item), has_turn))
        reach("process.after-state")
        return deduplicated, late

    def _late_dead_letters(self, late: pa.Table) -> pa.Table:
        """Return the dead letters for late rows; their bytes did not cross the exchange and are read again from their raw frames."""
        records = read_again(self._connections.log, self._connections.names.stream("raw"), late)
        return dead_letters(records, self._config.dedup.rejected_late(late), self._item.config, source=None)

    def tails(self) -> dict[str, SubjectTail]:
        """Return the subjects' ends as the next plan remembers them."""
        known = {subject: appender.known_tail for subject, appender in self._by_subject.items()}
        return {
            subject: (tail.sequence, str(tail.position) if tail.position is not None else "")
            for subject, tail in known.items()
            if tail is not None
        }

    def appender(self, role: str, subject: str) -> Appender[Position]:
        """Return the writer of one subject for this plan."""
        if subject not in self._by_subject:
            known = self._item.tails.get(subject)
            tail = Tail(known[0], Position.parse(known[1]) if known[1] else None) if known else None
            limit = Position.end_of(self._item.to)
            stream = self._connections.names.stream(role)
            self._by_subject[subject] = Appender(self._connections.log, stream, subject, last_position, limit, tail, self.means.framing)
        return self._by_subject[subject]


def dedup_store(connections: Connections, bucket: int, store: str = DEDUP_STORE) -> KeyedStore:
    """Return a store of a bucket's accepted keys; the caller opens the segments that the last `done` lists."""
    key = listed_as(store, bucket)
    return connections.keep(("dedup store", key), lambda: KeyedStore(connections.segments(key)))


def subjects_of(connections: Connections, bucket: int) -> list[tuple[str, str]]:
    """Return (role, subject) of all that is written of a bucket's records: the rows for each sink, positions, copies, dead letters."""
    names = connections.names
    outs = [(role, names.out(bucket, role)) for role in connections.config.topology.writes(connections.config.topology.process)]
    decided = [("duplicates", subject) for subject in (names.then_dropped(bucket), names.duplicates(bucket))]
    letters = [("dlq", names.dead_letters(leg, bucket)) for leg in (PROCESS_CHAIN.leg, JOIN_LETTERS)]
    return [*outs, *decided, *letters]


def check_not_passed(
    connections: Connections, span: tuple[int, int], record: Sequence[Any], subjects: Iterable[tuple[str, str]], first: Position
) -> None:
    """Raise HaltError if an attempt at a plan has written `first`, or beyond it, to one of `subjects`, (role, subject) each.

    Then it has passed `record`, which is in the form of `UndecidedError`: it wrote a row of it, or a dead letter for another reason.
    """
    for role, subject in subjects:
        last = connections.log.last(connections.names.stream(role), subject)
        if last is not None and not last_position(last) < first:
            raise HaltError(
                f"processing raw {span[0]}-{span[1]}: {record[4]} (raw position {record[0]}.{record[1]}), "
                "and an earlier attempt has passed it: an error that comes and goes is the host's. Nothing was dropped; start the pipeline "
                "again, on another host if it stays"
            )


def listed(runs: Iterable[RunFacts]) -> Listing:
    """Return live segments in the form of a `done`."""
    return [[facts.name, facts.rows, facts.newest, facts.digest] for facts in runs]


def live_runs(runs: Lists, key: str) -> list[RunFacts]:
    """Return the segments that are listed under a key (`naming.listed_as`)."""
    return [RunFacts(*facts) for facts in runs.get(key, [])]


def key_owners(rows: pa.Table, buckets: int) -> npt.NDArray[Any]:
    """Return the bucket of each row, by its KEY_COLUMNS."""
    return bucket_of_key(rows.column(KEY_COLUMNS[1]).to_numpy(), buckets)


def owners_of(rows: pa.Table, config: Program) -> npt.NDArray[Any]:
    """Return the bucket of each row: with dedup or a join by its key, else by its Kafka partition."""
    return key_owners(rows, config.buckets) if config.is_keyed else partition_owners(rows, config.buckets)


def partition_owners(rows: pa.Table, buckets: int) -> npt.NDArray[Any]:
    """Return the bucket of each row or dead letter, by its Kafka partition."""
    return bucket_of_partition(rows.column("_tf_partition").to_numpy(), buckets)


def shares(rows: pa.Table, owners: npt.NDArray[Any]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each bucket, in their order."""
    counts = np.bincount(owners)
    (present,) = counts.nonzero()
    if len(present) > 1:
        # One pass over the columns instead of one per bucket; a stable sort of 16 bits is a radix sort.
        rows = rows.take(pa.array(np.argsort(owners.astype(np.uint16), kind="stable")))
    start = 0
    for bucket in present.tolist():
        yield bucket, rows.slice(start, int(counts[bucket]))
        start += int(counts[bucket])
