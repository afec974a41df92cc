"""The dedup stage alone, without Kafka, NATS and Spark: cost per event against the number of live keys, merges included.

Keys are texts, one event in ten is a copy of a live one, the window holds `live_keys` events. The store is filled by the stage itself;
then as many events again are measured, so that every run that is live at the end was merged on the way: a full cycle.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import psutil
import pyarrow as pa

from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore, bucket_with_turn
from pipelines.process.buckets import key_owners, shares
from pipelines.process.dedup import dedup, with_keys
from pipelines.protocol.records import POSITION_FIELDS
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

BUCKETS = 8
FILL_EVENTS = 500_000
COPIES = 0.1
_LEAST_BATCHES = 20


@dataclass(frozen=True)
class StageCost:
    """CPU microseconds per event: the mean, and those of the slowest batch; milliseconds of wall clock per batch, median and slowest."""

    live_keys: int
    batch_events: int
    batches: int
    cpu_us: float
    slowest_cpu_us: float
    batch_ms: float
    slowest_batch_ms: float
    disk_bytes_per_key: float
    resident_bytes_per_key: float
    reopen_seconds: float


class _Stage:
    """Eight buckets, as one process leg has them, one after the other."""

    def __init__(self, engine: Engine, directory: Path, window_events: int) -> None:
        self._engine, self._window = engine, window_events
        self.directory = directory
        self.stores = [KeyedStore(Storage.local(directory / str(bucket))) for bucket in range(BUCKETS)]
        self._sequence = 0
        self.seen = 0

    def batch(self, events: int) -> pa.Table:
        """The next events: running keys, some replaced by one of the last `window_events`. The time of an event is its number."""
        random = np.random.default_rng(self.seen)
        numbers = np.arange(self.seen, self.seen + events)
        is_copy = random.random(events) < COPIES * (self.seen > 0)
        oldest = max(0, self.seen - self._window // 2)
        numbers = np.where(is_copy, random.integers(oldest, max(self.seen, 1), events), numbers)
        positions = {field.name: pa.nulls(events, field.type) for field in POSITION_FIELDS}
        positions["_tf_sequence"] = pa.array(np.full(events, self._sequence + 1, dtype=np.uint64))
        positions["_tf_ordinal"] = pa.array(np.arange(events, dtype=np.uint32))
        return pa.table({"id": pa.array(numbers).cast(pa.string()), **positions})

    def run(self, events: pa.Table) -> None:
        """What the process leg does with them between parsing and publishing."""
        times = np.arange(self.seen, self.seen + events.num_rows)
        rows = with_keys(self._engine, events, ["id"]).accepted.append_column("time", pa.array(times))
        for bucket, share in shares(rows, key_owners(rows, BUCKETS)):
            store = self.stores[bucket]
            found = dedup(share, share.column("time").to_numpy(), self._window, store.find)
            before = store.live
            span = (self._sequence, self._sequence + 1)
            has_turn = bucket_with_turn(span[1], BUCKETS) == bucket
            store.open(store.add(found.entries, span, self.seen - self._window, has_turn))
            for facts in {*before} - {*store.live}:
                store.storage.delete(facts.name)
        self._sequence += 1
        self.seen += events.num_rows

    def entries(self) -> int:
        return sum(facts.rows for store in self.stores for facts in store.live)

    def reopen(self) -> float:
        """Seconds to open all runs anew, as a start does."""
        begun = time.perf_counter()
        for store in self.stores:
            KeyedStore(store.storage).open(store.live)
        return time.perf_counter() - begun


def measure(directory: Path, live_keys: int, batch_events: int = FILL_EVENTS) -> StageCost:
    """Fills a store below `directory` and measures batches of `batch_events`; the caller deletes it."""
    engine = open_engine()
    # Copies bring no key: so many events have `live_keys` keys.
    stage = _Stage(engine, directory, max(round(live_keys / (1 - COPIES)), FILL_EVENTS))
    resting = _resident_bytes()
    for events in _filling(stage, live_keys):
        stage.run(events)
    is_small = batch_events < FILL_EVENTS
    count = _LEAST_BATCHES * 10 if is_small else max(_LEAST_BATCHES, live_keys // batch_events)
    for _ in range(count * is_small):
        # Merges of what the filling has left are not theirs.
        stage.run(stage.batch(batch_events))
    cpu, wall = [], []
    for _ in range(count):
        events = stage.batch(batch_events)
        begun, used = time.perf_counter(), time.process_time()
        stage.run(events)
        cpu.append(time.process_time() - used)
        wall.append(time.perf_counter() - begun)
    engine.close()
    held = stage.entries()
    return StageCost(
        live_keys=live_keys,
        batch_events=batch_events,
        batches=count,
        cpu_us=mean(cpu) / batch_events * 1e6,
        slowest_cpu_us=max(cpu) / batch_events * 1e6,
        batch_ms=float(np.median(wall)) * 1e3,
        slowest_batch_ms=max(wall) * 1e3,
        disk_bytes_per_key=sum(path.stat().st_size for path in directory.rglob("*.arrow")) / held,
        resident_bytes_per_key=(_resident_bytes() - resting) / held,
        reopen_seconds=stage.reopen(),
    )


def _filling(stage: _Stage, live_keys: int) -> Iterator[pa.Table]:
    while stage.entries() < live_keys:
        yield stage.batch(FILL_EVENTS)


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
