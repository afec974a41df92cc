"""The effects of the process leg, bucket by bucket: dedup against the bucket's store, then append what the bucket's subjects lack.

With dedup a row's bucket is a function of its key, and all rows of a plan that fall into one bucket are judged together, in position
order; without, it is a function of the Kafka partition. A dead letter's bucket is always that of its Kafka partition.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.append import Appender, Tail, append_rows, last_position
from pipelines.dedup import KEY_COLUMNS, Deduplicated, dedup
from pipelines.failpoints import reach
from pipelines.legs.connections import Connections
from pipelines.legs.execute import Item
from pipelines.legs.stage_config import StageConfig
from pipelines.naming import bucket_of_key, bucket_of_partition
from pipelines.records import Position, in_position_order
from pipelines.state.runs import RunFacts
from pipelines.state.store import KeyedStore

MAX_EMIT = 2**32 - 1
Listing = list[list[Any]]
"""Runs as `done` lists them: name, rows, newest time, digest."""


class Buckets:
    """The out, dead-letter and duplicates subjects, and the stores, of the buckets that an item touches.

    The item holds `to`, the end of the plan, `from`, `tails` by subject, `runs` by bucket, and `clock_us`, all as of the last `done`.
    """

    def __init__(self, connections: Connections, config: StageConfig, item: Item) -> None:
        self._connections, self._config, self._item = connections, config, item
        self._by_subject: dict[str, Appender[Position]] = {}
        self.runs: dict[str, Listing] = {}
        """What the next `done` lists, of the buckets that had rows."""

    def append(self, rows: pa.Table, rejected: pa.Table) -> None:
        """Appends rows and dead letters of any buckets, each in position order."""
        names = self._connections.names
        for bucket, share in shares(rows, partition_owners(rows, self._config.buckets)):
            append_rows(self._appender("out", names.out(bucket)), share)
        reach("process.between-frames")
        self.append_letters(rejected)

    def append_letters(self, rejected: pa.Table) -> None:
        for bucket, share in shares(rejected, partition_owners(rejected, self._config.buckets)):
            append_rows(self._appender("dlq", self._connections.names.dead_letters("process", bucket)), share)

    def append_first_of_keys(self, bucket: int, rows: pa.Table) -> dict[str, int]:
        """All rows of the plan that fall into `bucket`, in any order: drops duplicates, writes a run, appends the rest; the counts.

        The store is read as the last `done` lists it and nothing else, so a second attempt gives the same answer. Different buckets may
        be worked on by different threads.
        """
        store = self._connections.dedup_store(bucket)
        store.open([RunFacts(*listed) for listed in self._item["runs"].get(str(bucket), [])])
        found = first_of_keys(self._config, rows, store)
        reach("process.before-state")
        expired = self._item["clock_us"] - self._config.dedup_window_us
        self.runs[str(bucket)] = listed(store.add(found.entries, (self._item["from"], self._item["to"]), expired))
        reach("process.after-state")
        append_rows(self._appender("out", self._connections.names.out(bucket)), found.accepted)
        if self._config.dedup_keeps:
            append_rows(self._appender("duplicates", self._connections.names.duplicates(bucket)), found.duplicates)
        return {"rows_out": found.accepted.num_rows, "duplicates": found.duplicates.num_rows}

    def tails(self) -> dict[str, Any]:
        """The subjects' ends as the next plan remembers them."""
        known = {subject: appender.known_tail for subject, appender in self._by_subject.items()}
        return {
            subject: [tail.sequence, str(tail.position) if tail.position is not None else ""]
            for subject, tail in known.items()
            if tail is not None
        }

    def _appender(self, role: str, subject: str) -> Appender[Position]:
        if subject not in self._by_subject:
            known = self._item["tails"].get(subject)
            tail = Tail(known[0], Position.parse(known[1]) if known[1] else None) if known else None
            limit = Position(self._item["to"], MAX_EMIT, MAX_EMIT)
            stream = self._connections.names.stream(role)
            self._by_subject[subject] = Appender(self._connections.log, stream, subject, last_position, limit, tail)
        return self._by_subject[subject]


def first_of_keys(config: StageConfig, rows: pa.Table, store: KeyedStore) -> Deduplicated:
    """All rows of a range that fall into one bucket, in any order, judged against its store, which is open on what came before."""
    rows = in_position_order(rows)
    return dedup(rows, rows.column("_tf_arrival").cast(pa.int64()).to_numpy(), config.dedup_window_us, store.find)


def listed(runs: Iterable[RunFacts]) -> Listing:
    """Live runs in the form of a `done`."""
    return [[facts.name, facts.rows, facts.newest, facts.digest] for facts in runs]


def key_owners(rows: pa.Table, buckets: int) -> npt.NDArray[Any]:
    """The bucket of each row with KEY_COLUMNS."""
    return bucket_of_key(rows.column(KEY_COLUMNS[1]).to_numpy(), buckets)


def partition_owners(rows: pa.Table, buckets: int) -> npt.NDArray[Any]:
    """The bucket of each row or dead letter by its Kafka partition."""
    return bucket_of_partition(rows.column("_tf_partition").to_numpy(), buckets)


def shares(rows: pa.Table, owners: npt.NDArray[Any]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each bucket, in their order."""
    found = np.unique(owners)
    for bucket in found:
        yield int(bucket), rows if len(found) == 1 else rows.filter(pc.equal(pa.array(owners), pa.scalar(bucket)))
