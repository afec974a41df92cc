"""The join alone, without Kafka, NATS and Spark: cost per left record against the number of right keys, merges included.

Keys are texts, one record in ten is a right one, of a random key, so each batch renews some keys; left records are of random keys. Of the
left keys one in twenty has no right record: these wait for five batches, and are unmatched then. Both sides carry 128 bytes in six typed
columns. By event time each batch is one unit of time: its left records are decided with the batch behind it, so each of them is stored
once. The part that is measured lies between the steps of a source and the mapping: keys, the split among buckets, the decision, the
rows, and the stores.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import psutil
import pyarrow as pa

from pipelines.key_store.storage import Storage
from pipelines.key_store.store import bucket_with_turn
from pipelines.process.buckets import key_owners, shares
from pipelines.process.dedup import with_keys
from pipelines.process.join.progress import Progress, TimedFrames
from pipelines.process.join.rows import join
from pipelines.process.join.sides import Frames, Side, Windows
from pipelines.process.join.stores import JoinStores
from pipelines.process.join.timed_outcomes import join_by_time
from pipelines.process.join.timed_stores import TimedJoinStores
from pipelines.process.watermarks import PARTITIONS_OF_A_SOURCE, TIME_COLUMN
from pipelines.protocol.records import INSTANT
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

BUCKETS = 8
BATCH_RECORDS = 500_000
FILL_RECORDS = 500_000
RIGHT_SHARE = 0.1
WITHOUT_RIGHT = 0.05
_LEFT_WINDOW_BATCHES = 5
_BATCHES = 60
_TEXT_BYTES = 40
_FIELDS = (
    ("number", pa.int64()),
    ("price", pa.float64()),
    ("at", INSTANT),
    ("count", pa.int64()),
    ("code", pa.string()),
    ("note", pa.string()),
)


@dataclass(frozen=True)
class JoinCost:
    """CPU microseconds per left record: the mean of all batches, that of the slowest, and the mean by part; bytes per stored right key.

    `private_bytes_per_key`: memory that is not mapped from segments. `fill_us`: CPU microseconds per right record of the
    filling, all merges included.
    """

    right_keys: int
    time: str
    batches: int
    lefts: int
    cpu_us: float
    slowest_cpu_us: float
    keys_us: float
    decide_us: float
    rows_us: float
    store_us: float
    lefts_per_second: float
    disk_bytes_per_key: float
    resident_bytes_per_key: float
    private_bytes_per_key: float
    fill_us: float
    peak_private_bytes: int


class _Stage:
    def __init__(self, engine: Engine, directory: Path, right_keys: int, is_by_time: bool) -> None:
        self._engine, self.right_keys, self._is_by_time = engine, right_keys, is_by_time
        right, left = (pa.schema([(f"{side}_{name}", kind) for name, kind in _FIELDS]) for side in ("right", "left"))
        if is_by_time:
            left = left.append(pa.field("_tf_arrival", INSTANT))
        self._fields = right, left
        windows = Windows(_LEFT_WINDOW_BATCHES, 10**9)
        self._progress = Progress()
        kind = TimedJoinStores if is_by_time else JoinStores
        self._stores = [
            kind(Storage.local(directory / "right" / name), Storage.local(directory / "left" / name), self._fields, windows)
            for name in map(str, range(BUCKETS))
        ]
        self._random = np.random.default_rng(1)
        noise = self._random.integers(97, 122, 4_000 + _TEXT_BYTES, dtype=np.uint8).tobytes().decode()
        self._texts = pa.array([noise[at : at + _TEXT_BYTES] for at in range(4_000)])
        self._sequence = 0
        self.spent: dict[str, float] = {}

    def rows(self, numbers: np.ndarray, is_right: bool) -> pa.Table:
        """Records of these keys, with 128 bytes of fields; a left frame is followed by a right one."""
        count, fields = len(numbers), self._fields[not is_right]
        columns = [pa.array(numbers), pa.array(numbers / 3), pa.array(numbers).cast(INSTANT), pa.array(numbers * 2)]
        columns += [self._texts.take(pa.array(at)) for at in self._random.integers(0, len(self._texts), (2, count))]
        position = {
            "_tf_sequence": pa.array(np.full(count, 2 * self._sequence + 1 + is_right, dtype=np.uint64)),
            "_tf_ordinal": pa.array(np.arange(count, dtype=np.uint32)),
            "_tf_arrival": pa.array(np.full(count, self._sequence)).cast(INSTANT),
        }
        if self._is_by_time:
            position[TIME_COLUMN] = pa.array(np.full(count, self._sequence))
        return pa.table(
            {"id": pa.array(numbers).cast(pa.string()), **dict(zip(fields.names[: len(columns)], columns, strict=True)), **position}
        )

    def batch(self, lefts: int, rights: np.ndarray) -> tuple[pa.Table, pa.Table]:
        keys = self._random.integers(0, self.right_keys, lefts)
        has_none = self._random.random(lefts) < WITHOUT_RIGHT
        return self.rows(np.where(has_none, keys + 10**12, keys), is_right=False), self.rows(rights, is_right=True)

    def random_keys(self, count: int) -> np.ndarray:
        return self._random.integers(0, self.right_keys, count)

    def run(self, lefts: pa.Table, rights: pa.Table) -> None:
        """Join a batch of two frames in all buckets, one after the other."""
        begun = time.process_time()
        keyed = [with_keys(self._engine, rows, ["id"]).accepted for rows in (lefts, rights)]
        by_bucket: list[list[pa.Table]] = [[rows.slice(0, 0) for rows in keyed] for _ in range(BUCKETS)]
        for number, rows in enumerate(keyed):
            for bucket, share in shares(rows, key_owners(rows, BUCKETS)):
                by_bucket[bucket][number] = share
        begun = self._note("keys", begun)
        span = (2 * self._sequence, 2 * self._sequence + 2)
        clock = self._sequence - 1
        sequences, times = np.arange(span[0] + 1, span[1] + 1, dtype=np.uint64), np.full(2, self._sequence)
        ends = np.zeros(2, dtype=np.int64)
        timed = TimedFrames(sequences, np.array([0, PARTITIONS_OF_A_SOURCE]), times, ends, [{}] * 2, self._progress, 0)
        frames = Frames(sequences, times, clock)
        reached = timed.start_us if self._is_by_time else clock
        for bucket, (left, right) in enumerate(by_bucket):
            stores = self._stores[bucket]
            if isinstance(stores, TimedJoinStores):
                sides = Side.of(left, self._fields[1], TIME_COLUMN), Side.of(right, self._fields[0], TIME_COLUMN)
                joined = join_by_time(*sides, timed, stores)
            else:
                joined = join(Side.of(left, self._fields[1]), Side.of(right, self._fields[0]), frames, stores)
            begun = self._note("decide", begun)
            rows = sum(part.rows.num_rows for part in joined.slices(with_unmatched=True))
            assert rows == joined.counts.joined + joined.counts.unmatched
            begun = self._note("rows", begun)
            before = stores.listings()
            stores.open(*stores.add(joined.new_rights, joined.new_lefts, span, reached, bucket_with_turn(span[1], BUCKETS) == bucket))
            for store, old in zip((stores.rights, stores.lefts), before, strict=True):
                for facts in {*old} - {*store.live}:
                    store.storage.delete(facts.name)
            begun = self._note("store", begun)
        self._progress = timed.last
        self._sequence += 1

    def _note(self, part: str, begun: float) -> float:
        now = time.process_time()
        self.spent[part] = self.spent.get(part, 0.0) + now - begun
        return now

    def right_rows(self) -> int:
        return sum(facts.rows for stores in self._stores for facts in stores.rights.live)


def measure(directory: Path, right_keys: int, is_by_time: bool = False) -> JoinCost:
    """Fill the stores below `directory` with the right keys, and measure batches of BATCH_RECORDS; the caller deletes it."""
    with open_engine() as engine:
        stage = _Stage(engine, directory, right_keys, is_by_time)
        resting, filling = _memory(), 0.0
        for start in range(0, right_keys, FILL_RECORDS):
            keys = np.arange(start, min(start + FILL_RECORDS, right_keys))
            batch = stage.batch(1_000, keys)
            used = time.process_time()
            stage.run(*batch)
            filling += time.process_time() - used
        lefts = round(BATCH_RECORDS * (1 - RIGHT_SHARE))
        for _ in range(_LEFT_WINDOW_BATCHES + 1):
            stage.run(*stage.batch(lefts, stage.random_keys(BATCH_RECORDS - lefts)))
        stage.spent.clear()
        cpu, wall, peak = [], [], 0
        for _ in range(_BATCHES):
            batch = stage.batch(lefts, stage.random_keys(BATCH_RECORDS - lefts))
            used, begun = time.process_time(), time.perf_counter()
            stage.run(*batch)
            cpu.append((time.process_time() - used) / lefts * 1e6)
            wall.append(time.perf_counter() - begun)
            peak = max(peak, _memory()[1])
    del batch
    resident, private = _memory()
    stored = stage.right_rows()
    parts = {part: spent / len(cpu) / lefts * 1e6 for part, spent in stage.spent.items()}
    return JoinCost(
        right_keys=right_keys,
        time="event" if is_by_time else "arrival",
        batches=len(cpu),
        lefts=lefts,
        cpu_us=mean(cpu),
        slowest_cpu_us=max(cpu),
        keys_us=parts["keys"],
        decide_us=parts["decide"],
        rows_us=parts["rows"],
        store_us=parts["store"],
        lefts_per_second=lefts / mean(wall),
        disk_bytes_per_key=sum(path.stat().st_size for path in (directory / "right").rglob("*.arrow")) / stored,
        resident_bytes_per_key=(resident - resting[0]) / stored,
        private_bytes_per_key=(private - resting[1]) / stored,
        fill_us=filling / right_keys * 1e6,
        peak_private_bytes=peak,
    )


def _memory() -> tuple[int, int]:
    """Resident bytes of this process, and those of them that are not mapped from files."""
    found = psutil.Process().memory_info()
    return int(found.rss), int(found.rss - found.shared)
